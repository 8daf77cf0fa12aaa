#include "tools/topo/anonymous.h"

#include <arpa/inet.h>

#include <algorithm>
#include <cctype>
#include <vector>

namespace twinpath::tools::topo {
namespace {

bool is_hex(char c) { return std::isxdigit(static_cast<unsigned char>(c)) != 0; }
bool is_word(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '-';
}

std::vector<std::string> groups_of(const std::string& token) {
  std::vector<std::string> out(1);
  for (const char c : token) {
    if (c == ':')
      out.emplace_back();
    else
      out.back() += c;
  }
  return out;
}

// "0c42:a103:0000:0010", "aa:bb:cc:dd:ee:ff", "0c42a10300000010".
bool is_guid_or_mac(const std::string& token) {
  const auto groups = groups_of(token);
  const auto all_of = [&](std::size_t digits) {
    return std::all_of(groups.begin(), groups.end(), [=](const std::string& g) {
      return g.size() == digits && std::all_of(g.begin(), g.end(), is_hex);
    });
  };
  return (groups.size() == 4 && all_of(4)) || (groups.size() == 6 && all_of(2)) ||
         (groups.size() == 8 && all_of(2)) || (groups.size() == 1 && all_of(16));
}

// PCI addresses are none of these, nor are versions of three parts.
bool is_address(const std::string& token) {
  unsigned char bytes[16];
  if (token.find(':') == std::string::npos)
    return (inet_pton(AF_INET, token.c_str(), bytes) == 1 && token != "0.0.0.0" &&
            !token.starts_with("127.") && !token.starts_with("255.")) ||
           is_guid_or_mac(token);
  return (inet_pton(AF_INET6, token.c_str(), bytes) == 1 && token != "::" && token != "::1") ||
         is_guid_or_mac(token);
}

}  // namespace

void Anonymous::hide(std::string_view kind, const std::string& name) {
  if (name.empty() || name == "localhost" || names_.contains(name)) return;
  auto& count = counts_[std::string(kind)];
  names_[name] = std::string(kind) + "-" + std::to_string(++count);
}

std::string Anonymous::word_for(const std::string& token) {
  const auto [at, fresh] = addresses_.try_emplace(token);
  if (fresh) at->second = "address-" + std::to_string(addresses_.size());
  return at->second;
}

std::string Anonymous::operator()(std::string_view text) {
  std::string named;
  for (std::size_t i = 0; i < text.size();) {
    // The longest name that stands here as a whole word.
    const std::pair<const std::string, std::string>* found = nullptr;
    if (i == 0 || !is_word(text[i - 1]))
      for (const auto& n : names_) {
        const std::size_t end = i + n.first.size();
        if (text.substr(i, n.first.size()) == n.first &&
            (end >= text.size() || !is_word(text[end])) &&
            (found == nullptr || n.first.size() > found->first.size()))
          found = &n;
      }
    named += found == nullptr ? std::string(1, text[i]) : found->second;
    i += found == nullptr ? 1 : found->first.size();
  }
  std::string out;
  for (std::size_t i = 0; i < named.size();) {
    std::size_t end = i;
    while (end < named.size() && (is_hex(named[end]) || named[end] == ':' || named[end] == '.'))
      ++end;
    const bool starts = i == 0 || !is_word(named[i - 1]);
    std::string token = named.substr(i, end - i), rest;
    // A sentence's or a list's own marks behind it.
    while (!token.empty() && (token.back() == '.' || token.back() == ':') &&
           !token.ends_with("::")) {
      rest.insert(rest.begin(), token.back());
      token.pop_back();
    }
    const bool whole = starts && (end >= named.size() || !is_word(named[end]));
    if (end == i) {
      out += named[i++];
      continue;
    }
    // An address with a port behind it is one, too.
    const std::size_t colon = token.find(':');
    if (whole && is_address(token))
      out += word_for(token) + rest;
    else if (whole && colon != std::string::npos && is_address(token.substr(0, colon)) &&
             token.substr(0, colon).find('.') != std::string::npos)
      out += word_for(token.substr(0, colon)) + token.substr(colon) + rest;
    else
      out += named.substr(i, end - i);
    i = end;
  }
  return out;
}

}  // namespace twinpath::tools::topo
