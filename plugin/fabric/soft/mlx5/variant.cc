#include "plugin/fabric/soft/mlx5/variant.h"

namespace twinpath::soft::mlx5 {
namespace {

struct Word {
  std::string_view word;
  void (*set)(Variant&);
};
constexpr Word kWords[] = {
    {"free-running", [](Variant& v) { v.clocks = Clocks::free_running; }},
    {"both-clocks", [](Variant& v) { v.clocks = Clocks::both; }},
    {"no-cd", [](Variant& v) { v.waits = false; }},
    {"few", [](Variant& v) { v.few = true; }},
    {"shared-page", [](Variant& v) { v.dedicated_pages = false; }},
    {"no-devx", [](Variant& v) { v.commands = false; }},
    {"no-answer", [](Variant& v) { v.answers = false; }},
};

bool set_word(std::string_view word, Variant& out) {
  for (const Word& known : kWords) {
    if (known.word != word) continue;
    known.set(out);
    return true;
  }
  return false;
}

}  // namespace

bool parse_variant(std::string_view words, Variant& out, std::string& wanted) {
  Variant made;
  for (bool more = true; more;) {
    const std::size_t colon = words.find(':');
    more = colon != std::string_view::npos;
    if (!set_word(words.substr(0, colon), made)) {
      wanted = "words of";
      for (const Word& known : kWords) wanted.append(" ").append(known.word);
      wanted += ", with ':' between them";
      return false;
    }
    if (more) words.remove_prefix(colon + 1);
  }
  out = made;
  return true;
}

}  // namespace twinpath::soft::mlx5
