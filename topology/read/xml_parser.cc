#include "topology/read/xml_parser.h"

#include <algorithm>

#include "plugin/base/file.h"

namespace twinpath {
namespace {

bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }
bool is_name(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '-' || c == '.' || c == ':';
}

constexpr std::pair<std::string_view, char> kEntities[] = {
    {"&lt;", '<'}, {"&gt;", '>'}, {"&amp;", '&'}, {"&quot;", '"'}, {"&apos;", '\''}};

std::string unescaped(std::string_view text) {
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    const auto entity =
        std::find_if(std::begin(kEntities), std::end(kEntities),
                     [&](const auto& e) { return text.substr(at).starts_with(e.first); });
    const bool found = entity != std::end(kEntities);
    out += found ? entity->second : text[at];
    at += found ? entity->first.size() : 1;
  }
  return out;
}

class Parser {
 public:
  Parser(std::string_view text, std::string& why) : text_(text), why_(why) {}

  std::optional<XmlElement> run() {
    XmlElement root;
    if (!skip_to_tag()) return fail("there is no element");
    if (!element(root, 0)) return std::nullopt;
    if (skip_to_tag()) return fail("something follows the root element");
    if (failed_) return std::nullopt;
    return root;
  }

 private:
  std::nullopt_t fail(const std::string& what) {
    if (!failed_) {
      const auto seen = text_.substr(0, std::min(at_, text_.size()));
      why_ = "line " + std::to_string(1 + std::count(seen.begin(), seen.end(), '\n')) + ": " + what;
    }
    failed_ = true;
    return std::nullopt;
  }
  bool fail_now(const std::string& what) { return (void)fail(what), false; }

  // Passes text, comments and declarations; true at the "<" of a tag.
  bool skip_to_tag() {
    while (!failed_) {
      at_ = std::min(text_.find('<', at_), text_.size());
      if (at_ == text_.size()) return false;
      const std::string_view rest = text_.substr(at_);
      const char* end = rest.starts_with("<!--") ? "-->" : rest.starts_with("<?") ? "?>" : nullptr;
      if (end == nullptr && rest.starts_with("<!DOCTYPE ")) {
        // hwloc names its document type.  One that brings definitions may define entities.
        if (rest.substr(0, rest.find('>')).find('[') == std::string_view::npos) end = ">";
      }
      if (end == nullptr) {
        if (rest.starts_with("<!")) return fail_now("declarations are not supported");
        return true;
      }
      const std::size_t close = text_.find(end, at_);
      if (close == std::string_view::npos) return fail_now("a comment does not end");
      at_ = close + std::string_view(end).size();
    }
    return false;
  }

  void blanks() {
    while (at_ < text_.size() && is_blank(text_[at_])) ++at_;
  }
  std::string_view name() {
    const std::size_t begin = at_;
    while (at_ < text_.size() && is_name(text_[at_])) ++at_;
    return text_.substr(begin, at_ - begin);
  }
  bool take(std::string_view token) {
    if (!text_.substr(std::min(at_, text_.size())).starts_with(token)) return false;
    at_ += token.size();
    return true;
  }

  // At "<name": reads the element up to and with its end tag.
  bool element(XmlElement& out, int depth) {
    if (depth == kXmlMostDepth) return fail_now("elements are nested too deeply");
    if (++elements_ > kXmlMostElements) return fail_now("too many elements");
    ++at_;
    out.name = name();
    if (out.name.empty()) return fail_now("a tag without a name");
    for (;;) {
      blanks();
      if (take("/>")) return true;
      if (take(">")) return content(out, depth);
      if (!attribute(out)) return false;
    }
  }

  bool attribute(XmlElement& out) {
    const std::string key(name());
    blanks();
    if (key.empty() || !take("=")) return fail_now("<" + out.name + "> is cut off or malformed");
    blanks();
    if (at_ >= text_.size() || (text_[at_] != '"' && text_[at_] != '\''))
      return fail_now("the value of " + key + " has no quotes");
    const char quote = text_[at_++];
    const std::size_t close = text_.find(quote, at_);
    if (close == std::string_view::npos) return fail_now("the value of " + key + " does not end");
    if (out.attributes.size() == kXmlMostAttributes) return fail_now("too many attributes");
    out.attributes.emplace_back(key, unescaped(text_.substr(at_, close - at_)));
    at_ = close + 1;
    return true;
  }

  bool content(XmlElement& out, int depth) {
    while (skip_to_tag()) {
      if (take("</")) {
        const std::string_view end = name();
        blanks();
        if (end != out.name || !take(">"))
          return fail_now("<" + out.name + "> is closed by </" + std::string(end) + ">");
        return true;
      }
      out.children.emplace_back();
      if (!element(out.children.back(), depth + 1)) return false;
    }
    return fail_now("<" + out.name + "> does not end: the file is cut off");
  }

  std::string_view text_;
  std::string& why_;
  std::size_t at_ = 0;
  std::size_t elements_ = 0;
  bool failed_ = false;
};

}  // namespace

std::string_view XmlElement::attribute(std::string_view key) const {
  const auto it = std::find_if(attributes.begin(), attributes.end(),
                               [&](const auto& a) { return a.first == key; });
  return it == attributes.end() ? std::string_view() : std::string_view(it->second);
}

const XmlElement* XmlElement::child(std::string_view child_name) const {
  const auto it = std::find_if(children.begin(), children.end(),
                               [&](const XmlElement& c) { return c.name == child_name; });
  return it == children.end() ? nullptr : &*it;
}

std::optional<XmlElement> parse_xml(std::string_view text, std::string& why) {
  if (text.size() > kXmlMostBytes) {
    why = "the file has more than 16 MiB";
    return std::nullopt;
  }
  return Parser(text, why).run();
}

std::string xml_escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    const auto entity = std::find_if(std::begin(kEntities), std::end(kEntities),
                                     [&](const auto& e) { return e.second == c; });
    if (entity == std::end(kEntities)) {
      out += c;
    } else {
      out += entity->first;
    }
  }
  return out;
}

std::optional<std::string> read_xml_file(const std::string& path, std::string& why) {
  auto text = read_file(path, kXmlMostBytes, why);
  if (!text) why = path + ": " + why;
  return text;
}

}  // namespace twinpath
