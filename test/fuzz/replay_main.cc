// Runs a fuzz target without libFuzzer, so that every compiler and sanitizer build exercises it:
// all inputs of the target's corpus folder, each also cut at every length and with seeded
// random changes.  The seed is printed; give it as second argument to repeat a run.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

using Input = std::vector<std::uint8_t>;

void run(const Input& input) { (void)LLVMFuzzerTestOneInput(input.data(), input.size()); }

void mutate(Input& input, std::mt19937_64& random) {
  for (auto changes = 1 + random() % 4; changes > 0; --changes) {
    const auto byte = static_cast<std::uint8_t>(random());
    const auto at = input.empty() ? 0 : static_cast<std::ptrdiff_t>(random() % input.size());
    switch (random() % 4) {
      case 0:
        if (!input.empty()) input[static_cast<std::size_t>(at)] = byte;
        break;
      case 1:
        input.insert(input.begin() + at, byte);
        break;
      case 2:
        if (!input.empty()) input.erase(input.begin() + at);
        break;
      default:
        if (!input.empty())
          input[static_cast<std::size_t>(at)] ^= static_cast<std::uint8_t>(1u << (byte % 8));
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: %s CORPUS_FOLDER [SEED]\n", argv[0]);
    return 2;
  }
  const std::uint64_t seed = argc > 2 ? std::strtoull(argv[2], nullptr, 0) : 20240607;
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  std::fflush(stdout);
  std::mt19937_64 random(seed);
  std::vector<Input> corpus{{}};
  for (const auto& file : std::filesystem::directory_iterator(argv[1])) {
    std::ifstream in(file.path(), std::ios::binary);
    corpus.emplace_back(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
  }
  if (corpus.size() < 2) {
    std::fprintf(stderr, "%s: no input found\n", argv[1]);
    return 1;
  }
  std::size_t runs = 0;
  for (const Input& whole : corpus) {
    for (std::size_t n = 0; n <= whole.size(); ++n, ++runs)
      run(Input(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(n)));
    for (int i = 0; i < 20000 / static_cast<int>(corpus.size()); ++i, ++runs) {
      Input changed = whole;
      mutate(changed, random);
      run(changed);
    }
  }
  std::printf("%zu inputs, no finding\n", runs);
  return 0;
}
