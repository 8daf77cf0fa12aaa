// Small messages in any order of tags, many groups in flight: each keeps its bytes.
#include <algorithm>

#include "test/fabric/shapes.h"
#include "test/fabric/shuffle.h"
#include "test/fabric/traffic.h"
#include "test/support/numbers.h"

namespace twinpath::test {
namespace {

struct Style {
  bool grouped, in_order;
  friend std::ostream& operator<<(std::ostream& out, const Style& s) {
    return out << (s.grouped ? "groups, " : "single receives, ")
               << (s.in_order ? "in order" : "any order");
  }
};

enum class Run { one_thread, two_threads, queues_overtake };
const char* name(Run run) {
  return run == Run::one_thread    ? "one thread"
         : run == Run::two_threads ? "two threads"
                                   : "queues overtake each other";
}

Mix mix_of(const Style& style, std::uint64_t messages) {
  Mix mix;
  mix.seed = number_from("TWINPATH_TEST_SEED", 1);
  mix.most_in_group = style.grouped ? kMaxRecvs : 1;
  mix.in_order = style.in_order;
  mix.groups = messages * 2 / static_cast<std::uint64_t>(mix.most_in_group + 1);
  return mix;
}

std::string outcome(const Shape& shape, const Mix& mix, Run run) {
  LogCapture log;
  ShapedWorld world(shape, run == Run::queues_overtake ? Shuffle::on : nullptr);
  Link link = world.forth();
  Traffic t(*link.send, *link.recv, mix);
  std::string failure =
      run == Run::two_threads ? drive({&t.sender}, {&t.receiver}) : drive({&t.sender, &t.receiver});
  for (const std::string& warning : log.warnings()) failure += "; " + warning;
  return failure;
}

TEST_CASE("Small messages out of order over several queues keep their bytes") {
  const Shape shape = GENERATE(from_range(all_shapes()));
  const Style style =
      GENERATE(values<Style>({{true, true}, {true, false}, {false, true}, {false, false}}));
  const Run run = GENERATE(Run::one_thread, Run::two_threads, Run::queues_overtake);
  INFO(shape << ", " << style << ", " << name(run));
  // What queues that overtake each other can spoil needs some luck to show.
  CHECK(outcome(shape, mix_of(style, run == Run::queues_overtake ? 2000 : 500), run) == "");
}

TEST_CASE("Receives without completion keep their bytes over several queues") {
  const Shape shape = GENERATE(from_range(all_shapes()));
  const Run run = GENERATE(Run::one_thread, Run::two_threads, Run::queues_overtake);
  INFO(shape << ", " << name(run));
  Mix mix = mix_of({true, false}, 700);
  mix.optional_one_in = 2;
  CHECK(outcome(shape, mix, run) == "");
}

// Their cells' places must come back although no completion of their tag speaks for them.
TEST_CASE("Receives without completion under many tags do not use up the ring of cells") {
  const int tags_that_come_back = GENERATE(1, 0);
  World world;
  Link link = world.connect();
  Buffer from(*link.send, 64, 1), to(*link.recv, 64);
  for (int i = 0; i < 1000; ++i) {
    // One optional receive whose tag is not seen again, or every one optional and 12 tags in turn.
    const bool optional = tags_that_come_back != 0 || i == 0;
    const int tag = tags_that_come_back != 0 ? i % 12 : i == 0 ? 1 : 2;
    INFO((tags_that_come_back != 0 ? "12 tags" : "a tag that stays away") << ", receive " << i);
    const RecvBuffer buffer = to.receive(tag);
    Request *receive = nullptr, *send = nullptr;
    REQUIRE(eventually(
        [&] {
          return link.recv->irecv({&buffer, 1}, optional, &receive) == Status::ok;
        },
        2000));
    Completion c;
    REQUIRE(eventually([&] {
      if (!c.done) (void)receive->test(c);
      (void)link.send->isend(from.data(), 64, tag, from.memory, &send);
      return send != nullptr;
    }));
    finish(send);
    if (!c.done) finish(receive);
  }
}

// TWINPATH_SOAK_MESSAGES=10000000 makes it long.
TEST_CASE("Very many small messages out of order over two queues keep their bytes") {
  const Run run = GENERATE(Run::two_threads, Run::queues_overtake);
  INFO(name(run));
  const Mix mix = mix_of({true, false}, number_from("TWINPATH_SOAK_MESSAGES", 200'000) / 2);
  CHECK(outcome({2, std::max(1, real_rails()), false}, mix, run) == "");
}

}  // namespace
}  // namespace twinpath::test
