#include "plugin/nccl/environment.h"

#include <unistd.h>

#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace twinpath {
namespace {

constexpr int kAttempts = 100;

// Acquire and release: a reader that sees the new array sees its entries.  (getenv itself reads
// plainly; the entries depend on the pointer, which orders them on every machine we run on.)
char** present() { return __atomic_load_n(&environ, __ATOMIC_ACQUIRE); }
bool replace(char** old, char** fresh) {
  return __atomic_compare_exchange_n(&environ, &old, fresh, false, __ATOMIC_ACQ_REL,
                                     __ATOMIC_ACQUIRE);
}

// What was in use for a moment stays, for getenv hands out pointers into it; here leak checkers
// find it when the environment has moved on.
struct Kept {
  std::vector<char**> arrays;
  std::vector<char*> texts;
};
Kept& kept() {
  static Kept* const all = new Kept;
  return *all;
}

std::vector<char*> entries_of(char** array) {
  std::vector<char*> out;
  for (char** at = array; at != nullptr; ++at) {
    char* const entry = __atomic_load_n(at, __ATOMIC_RELAXED);
    if (entry == nullptr) break;
    out.push_back(entry);
  }
  return out;
}

bool is_of(std::string_view entry, std::string_view name) {
  return entry.size() > name.size() && entry.starts_with(name) && entry[name.size()] == '=';
}

// The entries, without empty ones of the names to be set, and then the new ones.
std::vector<char*> with(const std::vector<char*>& entries, std::span<const Setting> settings,
                        const std::vector<char*>& texts) {
  std::vector<char*> out;
  std::vector<bool> there(settings.size(), false);
  for (char* entry : entries) {
    bool empty = false;
    for (std::size_t i = 0; i < settings.size(); ++i) {
      const std::string_view name(settings[i].name), text(entry);
      if (!is_of(text, name)) continue;
      empty = text.size() == name.size() + 1;
      there[i] = there[i] || !empty;
    }
    if (!empty) out.push_back(entry);
  }
  for (std::size_t i = 0; i < settings.size(); ++i) {
    if (!there[i]) out.push_back(texts[i]);
  }
  return out;
}

}  // namespace

bool add_to_environment(std::span<const Setting> settings) {
  if (settings.empty()) return true;
  std::vector<char*> texts;
  for (const Setting& s : settings) {
    const std::string text = std::string(s.name) + "=" + s.value;
    texts.push_back(new char[text.size() + 1]);
    std::memcpy(texts.back(), text.c_str(), text.size() + 1);
    kept().texts.push_back(texts.back());
  }
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    char** const old = present();
    const std::vector<char*> before = entries_of(old);
    const std::vector<char*> wanted = with(before, settings, texts);
    auto fresh = std::make_unique<char*[]>(wanted.size() + 1);  // ends with a null
    std::memcpy(fresh.get(), wanted.data(), wanted.size() * sizeof(char*));
    // A setenv that ran meanwhile either moved the array, or wrote into the old one.
    if (!replace(old, fresh.get())) continue;
    char** const ours = fresh.release();
    kept().arrays.insert(kept().arrays.end(), {old, ours});
    if (entries_of(old) == before) return true;
    // What it wrote there is not in ours: back to the old one, which is whole, and again.  Nobody
    // lost sight of more than our settings.
    if (!replace(ours, old)) return true;  // somebody has copied ours by now, with the settings
  }
  return false;
}

}  // namespace twinpath
