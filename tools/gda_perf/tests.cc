// The tests as the host sees them: what both sides of a pair do before, during and after the
// kernels that measure.
#include <algorithm>

#include "tools/common/units.h"
#include "tools/gda_perf/bench.h"

namespace twinpath::gda_perf {
namespace {

std::uint64_t wait_ns(const Options& options) {
  return static_cast<std::uint64_t>(options.wait_s * 1e9);
}

int contexts_for(const Side& side, int blocks) { return std::min(side.contexts, blocks); }

LatencyOp op_of(Test test) {
  switch (test) {
    case Test::putvalue:
      return LatencyOp::value;
    case Test::signal:
      return LatencyOp::signal;
    case Test::putflush:
      return LatencyOp::flush;
    case Test::counter:
      return LatencyOp::counter;
    case Test::wpingpong:
      return LatencyOp::window_put;
    case Test::wsignal:
      return LatencyOp::window_signal;
    case Test::get:
      return LatencyOp::get;
    default:
      return LatencyOp::put;
  }
}

// Signals that `blocks` give, each `per_block` of them, by context.
AwaitArgs expect(const Part& part, int blocks, std::uint64_t per_block) {
  AwaitArgs out{};
  out.side = part.player.side();
  out.wait_ns = wait_ns(part.bench.options);
  out.outcome = part.player.outcomes();
  for (int b = 0; b < blocks; ++b) out.expected[b % contexts_for(out.side, blocks)] += per_block;
  return out;
}

void latency_line(Part& part, Test test, std::size_t bytes) {
  const Options& o = part.bench.options;
  Player& player = part.player;
  const std::string what = std::string(name_of(test)) + " " + tools::format_bytes(bytes);
  const bool answered = test != Test::putflush && test != Test::counter;
  part.prepare(what, bytes);
  const LatencyArgs args{.side = player.side(),
                         .op = op_of(test),
                         .initiator = part.initiator(),
                         .bytes = bytes,
                         .warmup = o.warmup,
                         .iterations = o.iterations,
                         .wait_ns = wait_ns(o),
                         .ticks = player.ticks(),
                         .outcome = player.outcomes()};
  const bool plays = answered || part.initiator();
  const Spent spent = part.run(what, plays ? 1 : 0, [&] {
    if (!plays) return cudaSuccess;
    return test == Test::get ? launch_get(args, player.stream())
                             : launch_latency(args, player.stream());
  });
  std::uint64_t wrong = player.outcomes()[0].wrong;
  std::vector<double> times;
  if (part.initiator()) times = player.times_us(o.iterations);
  if (!answered && !part.initiator()) wrong += part.await(what, expect(part, 1, 1));
  const bool gets = test != Test::get || part.initiator();
  if (bytes != 0 && gets && (answered || !part.initiator())) {
    const std::uint64_t last = std::uint64_t{o.warmup} + o.iterations - 1;
    wrong += part.verify(bytes, true, Stamp::of(last, player.side().half ^ 1));
  }
  part.hand_in(wrong, std::move(times), [&](std::uint64_t sum, std::vector<double>& all) {
    Row row{.test = name_of(test), .bytes = bytes, .messages = all.size()};
    row.us = tools::summarize(all);
    for (const double us : all) row.times_ns.add(static_cast<std::uint64_t>(us * 1000));
    row.wrong = sum;
    row.cpu_s = spent.cpu_s;
    row.wall_s = spent.wall_s;
    part.bench.report.row(row);
  });
}

// From the first block's start to the last block's end.
double seconds(const Player& player, int blocks) {
  std::uint64_t start = ~std::uint64_t{0}, end = 0;
  for (int b = 0; b < blocks; ++b) {
    start = std::min(start, player.outcomes()[b].start_ns);
    end = std::max(end, player.outcomes()[b].end_ns);
  }
  return static_cast<double>(std::max<std::uint64_t>(end - start, 1)) / 1e9;
}

void rate_line(Part& part, int blocks, Notice notice) {
  const Options& o = part.bench.options;
  Player& player = part.player;
  const std::uint64_t messages = rate_messages(o, blocks);
  const int contexts = contexts_for(player.side(), blocks);
  const std::string variant = notice == Notice::none     ? "put"
                              : notice == Notice::signal ? "put+signal"
                                                         : "put+signal+counter";
  const std::string what = "rate " + variant + ", " + std::to_string(blocks) + " blocks";
  const auto count = static_cast<std::uint64_t>(blocks);
  const std::size_t area = count * kRateSlots * kRateMessageBytes;
  RateArgs args{.side = player.side(),
                .blocks = blocks,
                .contexts = contexts,
                .notice = notice,
                .messages = 0,
                .wait_ns = wait_ns(o),
                .gate = player.gate(),
                .outcome = player.outcomes()};
  Spent spent;
  std::uint64_t wrong = 0;
  std::vector<double> rates;
  // Once unmeasured; long enough that every slot of every block is written.
  for (const std::uint64_t n : {kRateSlots, messages}) {
    part.prepare(what, area);
    args.messages = n;
    spent = part.run(what, part.initiator() ? blocks : 0, [&] {
      return part.initiator() ? launch_rate(args, player.stream()) : cudaSuccess;
    });
    if (part.initiator()) {
      rates = {static_cast<double>(n * count) / seconds(player, blocks)};
      if (notice == Notice::signal_and_counter) {
        AwaitArgs counted = expect(part, blocks, n);
        counted.counters = true;
        wrong += part.await(what, counted);
      }
    } else {
      wrong += part.await(what, expect(part, blocks, notice == Notice::none ? 1 : n));
      if (n >= kRateSlots) wrong += part.verify(area, false, 0);
    }
  }
  part.hand_in(wrong, std::move(rates), [&](std::uint64_t sum, std::vector<double>& all) {
    Row row{.test = "rate", .variant = variant, .bytes = kRateMessageBytes, .blocks = blocks};
    row.contexts = contexts;
    row.messages = messages * count * all.size();
    double rate = 0;
    for (const double r : all) rate += r;
    row.messages_per_s = rate;
    row.wrong = sum;
    row.cpu_s = spent.cpu_s;
    row.wall_s = spent.wall_s;
    part.bench.report.row(row);
  });
}

void stream_line(Part& part, std::size_t bytes, int blocks, bool both) {
  const Options& o = part.bench.options;
  Player& player = part.player;
  const StreamPlan plan = plan_stream(o, bytes, blocks);
  const std::string variant = both ? "bidirectional" : "unidirectional";
  const std::string what = "bw " + variant + " " + tools::format_bytes(bytes) + ", " +
                           std::to_string(blocks) + " blocks";
  const StreamArgs args{.side = player.side(),
                        .blocks = blocks,
                        .contexts = contexts_for(player.side(), blocks),
                        .sends = both || part.initiator(),
                        .receives = both || !part.initiator(),
                        .bytes = bytes,
                        .messages = plan.messages,
                        .slots = plan.slots,
                        .wait_ns = wait_ns(o),
                        .gate = player.gate(),
                        .outcome = player.outcomes()};
  Spent spent;
  std::uint64_t wrong = 0;
  std::vector<double> times;
  for (int repetition = 0; repetition <= o.repetitions; ++repetition) {
    // The first is not measured; it and the last are compared, word by word.
    const bool compared = repetition == 0 || repetition == o.repetitions;
    part.prepare(what, compared ? plan.slots * bytes : 0);
    const Spent one = part.run(what, blocks, [&] { return launch_stream(args, player.stream()); });
    if (compared && args.receives) wrong += part.verify(plan.slots * bytes, false, 0);
    if (repetition == 0) continue;
    spent.cpu_s += one.cpu_s;
    spent.wall_s += one.wall_s;
    if (args.sends) times.push_back(seconds(player, blocks));
  }
  part.hand_in(wrong, std::move(times), [&](std::uint64_t sum, std::vector<double>&) {
    // Per repetition: each direction's own rate, all added up.
    std::vector<double> rates(static_cast<std::size_t>(o.repetitions), 0.0);
    std::uint64_t senders = 0;
    for (const std::vector<double>& side : part.bench.samples) {
      senders += side.empty() ? 0 : 1;
      for (std::size_t r = 0; r < side.size(); ++r)
        rates[r] += static_cast<double>(plan.messages * bytes) / side[r] / 1e9;
    }
    Row row{.test = "bw", .variant = variant, .bytes = bytes, .blocks = blocks};
    row.contexts = args.contexts;
    row.messages = plan.messages * senders;
    row.gb_per_s = tools::summarize(rates);
    row.wrong = sum;
    row.cpu_s = spent.cpu_s;
    row.wall_s = spent.wall_s;
    part.bench.report.row(row);
  });
}

}  // namespace

void run_latency(Part& part, Test test) {
  for (const std::size_t bytes : part.bench.options.sizes(test)) latency_line(part, test, bytes);
}

void run_rate(Part& part, std::initializer_list<Notice> notices) {
  for (const Notice notice : notices) {
    for (const int blocks : part.bench.options.blocks) rate_line(part, blocks, notice);
  }
}
void run_rate(Part& part) { run_rate(part, {Notice::none, Notice::signal}); }
void run_counters(Part& part) { run_rate(part, {Notice::signal_and_counter}); }

void run_stream(Part& part) {
  for (const bool both : {false, true}) {
    for (const int blocks : part.bench.options.bw_blocks) {
      for (const std::size_t bytes : part.bench.options.sizes(Test::bw))
        stream_line(part, bytes, blocks, both);
    }
  }
}

}  // namespace twinpath::gda_perf
