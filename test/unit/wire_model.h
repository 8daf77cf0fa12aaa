#pragma once
// The wire protocol of the data path as a toy: a ring of 4 cells, 2 places for parcels, 2 queues
// that keep order each but not between them, numbers that wrap after 4.  It is so small that every
// interleaving can be tried.  Of proxy's code it uses the pure part that counts parcels; the rest
// it says once more, as that code relies on it.
//
// Protocol: a receive is one or two cells, written in order to the sender's ring.  A message goes
// to a cell of its tag, in the order of the tag's cells, on any queue: alone to where the cell
// says, with an immediate that names the receive (none for an optional one), or with another in a
// parcel.  A parcel says itself which receive each message is for.  It lies in a place of a box at
// the receiver, which copies it out; how many parcels it has copied without a gap stands in each
// later cell, and without that word the sender does not use a place again.  Anything accepted may
// stay behind, but leaves by itself.
//
// A cell is read when its message is written, not before.  The message's notice tells the receiver
// that the cell's place is free.  An optional one brings no notice, so it is written at once, and
// the sender says now and then how many cells it has used, in a word of the box: as long as it has
// not said so of each optional cell that it has used, whenever it is kReportPeriod cells further
// than the last time.  A report counts cells without a gap, so it may not reach the very cell that
// it is owed for.  The receiver looks there when it has no room.  That word keeps order with itself
// alone here: the real one shares a queue with data, and nothing should rely on that.
//
// A cell is in the ring as soon as it is posted: one that is still on its way is like one that the
// sender has not looked at yet.
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "proxy/wire/parcel.h"

namespace twinpath::model {

using U8 = std::uint8_t;
inline constexpr unsigned kCells = 4, kBoxSlots = 2, kParcel = 2, kQueues = 2, kRequests = 2;
inline constexpr unsigned kTags = 2, kWrap = 4, kMostCells = 32;
// Cells that a sender goes on by between two reports of how many it has used.
inline constexpr unsigned kReportPeriod = 2;
// Numbers begin where they soon wrap: the first cell, and the first parcel.
inline constexpr unsigned kFirstCell = kCells * kWrap - 3, kFirstParcel = 255;
// Places that the real box has and this one has not: they count as never read.
inline constexpr unsigned kMissingPlaces = kParcelPlaces - kBoxSlots;

// One irecv: a tag for each of its buffers.
struct Receive {
  std::vector<U8> tags;
  bool optional = false;
};
using Program = std::vector<Receive>;

// Ways to get it wrong, most of them once tried.  None set: the protocol.
struct Defects {
  bool parcel_with_holes = false;       // messages lie at their cells' places, the rest is stale
  bool slots_without_credit = false;    // a place is used again whether read or not
  bool count_out_of_order = false;      // copied parcels are counted, whichever they were
  bool count_of_older_cell = false;     // a count is taken from a cell older than the last one
  bool only_parcels = false;            // a small message waits until there is a place
  bool cells_freed_when_sent = false;   // the place of an optional cell is free at once
  bool reported_before_read = false;    // an optional message may wait; its cell counts as used
  bool no_report = false;               // nobody says how many cells are used
  bool report_ends_debt = false;        // also where an optional cell beyond it was answered
  bool reports_out_of_order = false;    // of two such words on their way the older may come last
  bool cells_wait_for_company = false;  // a lone cell stays until another comes
};

enum class Fault {
  none,
  wrong_bytes,
  arrived_twice,
  no_receive,
  parcel_lost,
  wrong_credit,
  cell_lost,
  stuck
};
std::string name(Fault fault);

template <class T, std::size_t N>
struct Fifo {
  U8 count = 0;
  std::array<T, N> items{};
  bool empty() const { return count == 0; }
  bool full() const { return count == N; }
  void push(const T& item) { items[count++] = item; }
  // What lies behind the end is always zero, so that equal states have equal bytes.
  T take(std::size_t at = 0) {
    const T item = items[at];
    for (std::size_t i = at + 1; i < count; ++i) items[i - 1] = items[i];
    items[--count] = T{};
    return item;
  }
};

// Messages and buffers are both named by the number of the cell that they belong to, plus 1.
struct Cell {
  U8 lap, tag, request, sub, generation, optional, copied, buffer;
};
struct Message {
  U8 message, buffer, request, sub, generation, place;
};
struct Write {
  U8 parcel;                            // bit i: entry i of the box is written
  U8 present;                           // and holds a message
  U8 number;                            // of the parcel
  U8 optional;                          // no immediate
  std::array<Message, kCells> entries;  // the message alone: in entry 0
};
struct Arrival {
  U8 present;  // entries of the box; 0: a message alone
  U8 number, request, sub, generation;
};

struct Receiver {
  struct Request {
    U8 active, generation, left, first, count, arrived;
  };
  U8 next_receive, next, posted, free;  // cells by number
  std::array<Request, kRequests> requests;
  std::array<Cell, kCells> shadow;
  std::array<U8, kCells> unused;  // 0: the sender has used it, 1: unknown, 2: unknown and optional
  U8 said_used;                   // the word in the box: the sender has used all before this one
  ParcelFrontier parcels;
  std::array<Message, kCells> box;
  U8 unread;                              // entries of the box
  std::array<U8, kMostCells / 8> memory;  // a bit by buffer: its message lies there
  Fifo<Arrival, kCells> arrivals;
};

struct Sender {
  std::array<Cell, kCells> ring;
  std::array<U8, kCells> used;
  U8 head, seen;  // cells by number: the first one not used, the first one not looked at
  std::array<U8, kTags> sent;
  Fifo<Message, kParcel> held;
  ParcelCredit credit;
  U8 told, optional_end;               // the last report; optional cells answered lie before this
  std::array<Message, kCells> mirror;  // of the box, for parcels with holes
};

struct State {
  Receiver receiver;
  Sender sender;
  std::array<Fifo<Write, kCells>, kQueues> queues;
  Fifo<U8, kCells> reports;  // on their way
};

// The steps that are possible.  Each is done on the state given; false: it is not possible now.
// A step that finds something wrong leaves that in fault().
class Model {
 public:
  Model(const Program& program, const Defects& defects);
  State begin() const;
  bool finished(const State& s) const;
  Fault fault() const { return fault_; }

  // The receiver posts its next receive, and takes what has arrived.
  bool irecv(State& s);
  bool post_cells(State& s);
  bool poll(Receiver& r);
  // The sender accepts its next message of that tag and, if it is optional, writes it to that
  // queue.
  bool isend(State& s, U8 tag, U8 q);
  // It writes one of those that it holds back, or the first `n` of them together.
  bool write_alone(State& s, U8 at, U8 q);
  bool write_parcel(State& s, U8 n, U8 q);
  // The oldest write of a queue comes to the receiver.
  bool deliver(State& s, U8 q);
  // And the oldest report; a later one only where order is lost.
  bool deliver_report(State& s, U8 at);

 private:
  bool wrong(Fault fault);
  bool arrived(Receiver& r, U8 slot, U8 sub, U8 generation);
  // False after a fault.
  bool land(Receiver& r, U8 message, U8 buffer);
  void learn_used(Receiver& r);
  // Looks at the next cell; false when it is not there.
  bool see_cell(Sender& s);
  // What a cell says was copied; false after a fault.
  bool told(Sender& s, const Cell& cell);
  void use(State& s, U8 seq, bool optional);
  // Reads the message's cell.
  Message read_cell(Sender& s, Message m);
  void write(State& s, const Message& m, U8 q);
  bool write_with_holes(State& s, U8 n, U8 q);

  const Program program_;
  const Defects bad_;
  std::array<std::vector<U8>, kTags> messages_;  // by tag: their names in order
  unsigned end_ = 0;                             // of the buffers
  Fault fault_ = Fault::none;
};

}  // namespace twinpath::model
