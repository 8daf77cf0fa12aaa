#pragma once
// The small part of XML that topology files of NCCL and hwloc use: elements, attributes, comments,
// a document type without definitions.  Text between elements is passed over.  Bounded in size,
// depth, elements and attributes, so that any file may be tried.
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace twinpath {

struct XmlElement {
  std::string name;
  std::vector<std::pair<std::string, std::string>> attributes;
  std::vector<XmlElement> children;

  // The attribute's value; empty when there is none.
  std::string_view attribute(std::string_view key) const;
  const XmlElement* child(std::string_view child_name) const;
};

inline constexpr std::size_t kXmlMostBytes = 16u << 20;
inline constexpr int kXmlMostDepth = 64;
inline constexpr std::size_t kXmlMostElements = 65536;
inline constexpr std::size_t kXmlMostAttributes = 64;

// The root element; nullopt and `why` with the line.
std::optional<XmlElement> parse_xml(std::string_view text, std::string& why);
// Text as it may stand in an attribute.
std::string xml_escaped(std::string_view text);

// All of a file; null and `why`, which names it, where it cannot be read or is too large.
std::optional<std::string> read_xml_file(const std::string& path, std::string& why);

}  // namespace twinpath
