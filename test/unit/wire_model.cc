#include "test/unit/wire_model.h"

#include <algorithm>

namespace twinpath::model {
namespace {

U8 lap(unsigned seq) { return static_cast<U8>(seq / kCells % kWrap + 1); }

void free_places(Receiver& r) {
  while (r.free < r.posted && r.unused[r.free % kCells] == 0) ++r.free;
}
void finish(Receiver::Request& r) { r = {0, r.generation, 0, 0, 0, 0}; }

}  // namespace

Model::Model(const Program& program, const Defects& defects) : program_(program), bad_(defects) {
  U8 buffer = kFirstCell;
  for (const Receive& r : program)
    for (const U8 tag : r.tags) messages_[tag].push_back(++buffer);
  end_ = buffer;
}

State Model::begin() const {
  State s{};
  s.receiver.next = s.receiver.posted = s.receiver.free = s.sender.head = kFirstCell;
  for (unsigned seq = kFirstCell - kCells; seq < kFirstCell; ++seq)
    s.sender.ring[seq % kCells].lap = lap(seq);
  for (auto& request : s.receiver.requests) request.generation = kWrap - 2;
  s.sender.seen = s.sender.told = s.sender.optional_end = s.receiver.said_used = kFirstCell;
  for (unsigned i = 0; i < kFirstParcel; ++i) (void)s.receiver.parcels.read(s.sender.credit.take());
  (void)s.sender.credit.told(static_cast<U8>(s.receiver.parcels.frontier() - kMissingPlaces));
  return s;
}

bool Model::finished(const State& s) const {
  for (unsigned i = kFirstCell; i < end_; ++i)
    if ((s.receiver.memory[i / 8] >> i % 8 & 1) == 0) return false;
  for (const auto& r : s.receiver.requests)
    if (r.active != 0) return false;
  return s.receiver.next_receive == program_.size() && s.receiver.arrivals.empty();
}
// What a step finds wrong; the step itself was possible.
bool Model::wrong(Fault fault) {
  fault_ = fault;
  return true;
}

// --- the receiver
bool Model::irecv(State& s) {
  Receiver& r = s.receiver;
  if (r.next_receive == program_.size()) return false;
  const Receive& wanted = program_[r.next_receive];
  if (r.next + wanted.tags.size() - r.free > kCells) learn_used(r);
  U8 slot = 0;
  while (slot < kRequests && r.requests[slot].active != 0) ++slot;
  if (slot == kRequests || r.next + wanted.tags.size() - r.free > kCells) return false;
  ++r.next_receive;
  auto& request = r.requests[slot];
  const auto count = static_cast<U8>(wanted.tags.size());
  request = {1, static_cast<U8>((request.generation + 1) % kWrap), count, r.next, count, 0};
  for (U8 sub = 0; sub < count; ++sub, ++r.next) {
    r.shadow[r.next % kCells] = {lap(r.next),
                                 wanted.tags[sub],
                                 slot,
                                 sub,
                                 request.generation,
                                 wanted.optional,
                                 r.parcels.frontier(),
                                 static_cast<U8>(r.next + 1)};
    r.unused[r.next % kCells] = wanted.optional ? 2 : 1;
  }
  if (!bad_.cells_wait_for_company) (void)post_cells(s);
  return true;
}

bool Model::post_cells(State& s) {
  Receiver& r = s.receiver;
  if (r.posted == r.next) return false;
  if (bad_.cells_wait_for_company && r.next - r.posted < 2) return false;
  for (; r.posted < r.next; ++r.posted) {
    const Cell& cell = r.shadow[r.posted % kCells];
    Cell& place = s.sender.ring[r.posted % kCells];
    if (place.buffer != 0) return wrong(Fault::cell_lost);
    place = cell;
    if (cell.optional == 0) continue;
    finish(r.requests[cell.request]);  // as soon as it is on its way
    if (bad_.cells_freed_when_sent) r.unused[r.posted % kCells] = 0;
  }
  free_places(r);
  return true;
}

// As CtsWriter::learn_used.
void Model::learn_used(Receiver& r) {
  for (U8 seq = r.free; seq < r.said_used; ++seq)
    if (r.unused[seq % kCells] == 2) r.unused[seq % kCells] = 0;
  free_places(r);
}

bool Model::poll(Receiver& r) {
  if (r.arrivals.empty()) return false;
  const Arrival a = r.arrivals.take();
  if (a.present == 0) return arrived(r, a.request, a.sub, a.generation);
  for (unsigned i = 0; i < kCells; ++i) {
    if ((a.present >> i & 1) == 0) continue;
    const Message m = r.box[i];
    if (!bad_.parcel_with_holes) r.box[i] = {};
    r.unread = static_cast<U8>(r.unread & ~(1u << i));
    const auto& request = r.requests[m.request];
    if (m.message == 0 || request.active == 0) return wrong(Fault::no_receive);
    if (!land(r, m.message, static_cast<U8>(request.first + m.sub + 1))) return true;
    if (arrived(r, m.request, m.sub, m.generation); fault_ != Fault::none) return true;
  }
  if (bad_.parcel_with_holes) return true;  // places are free when their cells are
  const U8 number = bad_.count_out_of_order ? r.parcels.frontier() : a.number;
  return r.parcels.read(number) || wrong(Fault::no_receive);
}

bool Model::arrived(Receiver& r, U8 slot, U8 sub, U8 generation) {
  auto& request = r.requests[slot];
  if (request.active == 0 || request.generation != generation || sub >= request.count ||
      (request.arrived >> sub & 1) != 0)
    return wrong(Fault::no_receive);
  request.arrived = static_cast<U8>(request.arrived | 1u << sub);
  if (--request.left > 0) return true;
  for (unsigned i = 0; i < request.count; ++i) r.unused[(request.first + i) % kCells] = 0;
  finish(request);
  free_places(r);
  return true;
}

bool Model::land(Receiver& r, U8 message, U8 buffer) {
  U8& memory = r.memory[(buffer - 1u) / 8];
  const unsigned bit = 1u << (buffer - 1u) % 8;
  if ((memory & bit) != 0) fault_ = Fault::arrived_twice;
  if (message != buffer) fault_ = Fault::wrong_bytes;
  memory = static_cast<U8>(memory | bit);
  return fault_ == Fault::none;
}

// --- the wire
bool Model::deliver(State& s, U8 q) {
  if (s.queues[q].empty()) return false;
  Receiver& r = s.receiver;
  if (r.arrivals.full()) return false;
  const Write w = s.queues[q].take();
  const Message& alone = w.entries[0];
  if (w.parcel == 0) {
    if (!land(r, alone.message, alone.buffer)) return true;
    if (w.optional == 0) r.arrivals.push({0, 0, alone.request, alone.sub, alone.generation});
    return true;
  }
  for (unsigned i = 0; i < kCells; ++i) {
    if ((w.parcel >> i & 1) == 0) continue;
    // With holes, what was there may come again unchanged; the reader finds when it does not.
    if ((r.unread >> i & 1) != 0 && !bad_.parcel_with_holes) return wrong(Fault::parcel_lost);
    r.box[i] = w.entries[i];
  }
  r.unread = static_cast<U8>(r.unread | w.present);
  r.arrivals.push({w.present, w.number, 0, 0, 0});
  return true;
}

bool Model::deliver_report(State& s, U8 at) {
  if (at >= s.reports.count || (at > 0 && !bad_.reports_out_of_order)) return false;
  s.receiver.said_used = s.reports.take(at);
  return true;
}

// --- the sender
bool Model::told(Sender& s, const Cell& cell) {
  return s.credit.told(static_cast<U8>(cell.copied - kMissingPlaces)) ||
         !wrong(Fault::wrong_credit);
}

bool Model::see_cell(Sender& s) {
  const Cell& cell = s.ring[s.seen % kCells];
  if (cell.lap != lap(s.seen) || !told(s, cell)) return false;
  ++s.seen;
  return true;
}

void Model::use(State& s, U8 seq, bool optional) {
  Sender& from = s.sender;
  from.used[seq % kCells] = 1;
  for (; from.used[from.head % kCells] != 0; ++from.head) from.used[from.head % kCells] = 0;
  if (optional) from.optional_end = std::max<U8>(from.optional_end, static_cast<U8>(seq + 1));
  if (bad_.no_report || from.optional_end <= from.told || from.head < from.told + kReportPeriod)
    return;
  s.reports.push(from.told = from.head);
  if (bad_.report_ends_debt) from.optional_end = 0;
}

bool Model::isend(State& s, U8 tag, U8 q) {
  Sender& from = s.sender;
  if (from.sent[tag] == messages_[tag].size()) return false;
  for (U8 seq = from.head; seq != from.seen || see_cell(from); ++seq) {
    if (from.used[seq % kCells] != 0) continue;
    Cell& cell = from.ring[seq % kCells];
    if (bad_.count_of_older_cell && !told(from, cell)) return true;
    if (cell.tag != tag) continue;
    const bool optional = cell.optional != 0, at_once = optional && !bad_.reported_before_read;
    if (at_once ? s.queues[q].full() : from.held.full() || q > 0) return false;
    const Message m{messages_[tag][from.sent[tag]++], 0, cell.request, cell.sub, cell.generation,
                    static_cast<U8>(seq % kCells)};
    if (at_once)
      write(s, m, q);
    else
      from.held.push(m);
    use(s, seq, optional);
    return true;
  }
  return fault_ != Fault::none;
}

Message Model::read_cell(Sender& s, Message m) {
  Cell& cell = s.ring[m.place];
  m.buffer = cell.buffer;
  cell = {cell.lap, 0, 0, 0, 0, 0, bad_.count_of_older_cell ? cell.copied : U8{0}, 0};
  return m;
}

void Model::write(State& s, const Message& m, U8 q) {
  Write w{};
  w.optional = s.sender.ring[m.place].optional;
  w.entries[0] = read_cell(s.sender, m);
  s.queues[q].push(w);
}

bool Model::write_alone(State& s, U8 at, U8 q) {
  Sender& from = s.sender;
  if (at >= from.held.count || s.queues[q].full()) return false;
  if (bad_.only_parcels && from.ring[from.held.items[at].place].optional == 0) return false;
  write(s, from.held.take(at), q);
  return true;
}

bool Model::write_parcel(State& s, U8 n, U8 q) {
  Sender& from = s.sender;
  if (n > from.held.count || s.queues[q].full()) return false;
  for (U8 i = 0; i < n; ++i)
    if (from.ring[from.held.items[i].place].optional != 0) return false;
  if (bad_.parcel_with_holes) return write_with_holes(s, n, q);
  while (!bad_.slots_without_credit && !from.credit.any())
    if (!see_cell(from)) return fault_ != Fault::none;
  Write w{};
  w.number = from.credit.take();
  const unsigned slot = w.number % kBoxSlots;
  for (U8 i = 0; i < n; ++i) {
    w.parcel = static_cast<U8>(w.parcel | 1u << (slot * kParcel + i));
    w.entries[slot * kParcel + i] = read_cell(from, from.held.take());
  }
  w.present = w.parcel;
  s.queues[q].push(w);
  return true;
}

bool Model::write_with_holes(State& s, U8 n, U8 q) {
  Sender& from = s.sender;
  Write w{};
  unsigned first = kCells, last = 0;
  for (U8 i = 0; i < n; ++i) {
    const Message m = read_cell(from, from.held.take());
    from.mirror[m.place] = m;
    w.present = static_cast<U8>(w.present | 1u << m.place);
    first = std::min<unsigned>(first, m.place);
    last = std::max<unsigned>(last, m.place);
  }
  for (unsigned i = first; i <= last; ++i) {
    w.parcel = static_cast<U8>(w.parcel | 1u << i);
    w.entries[i] = from.mirror[i];
  }
  s.queues[q].push(w);
  return true;
}

std::string name(Fault fault) {
  switch (fault) {
    case Fault::none:
      return "none";
    case Fault::wrong_bytes:
      return "wrong bytes";
    case Fault::arrived_twice:
      return "arrived twice";
    case Fault::no_receive:
      return "data for no receive";
    case Fault::parcel_lost:
      return "a parcel overwritten unread";
    case Fault::wrong_credit:
      return "a count of parcels that cannot be";
    case Fault::cell_lost:
      return "a cell overwritten unread";
    case Fault::stuck:
      return "stuck";
  }
  return "?";
}

}  // namespace twinpath::model
