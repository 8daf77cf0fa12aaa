#include "tools/topo/svg.h"

#include <algorithm>
#include <array>
#include <map>

#include "tools/topo/names.h"
#include "tools/topo/svg_layout.h"
#include "topology/read/xml_parser.h"

namespace twinpath::tools::topo {
namespace {

constexpr const char* kRed = "#c62828";

struct Style {
  const char* fill;
  const char* stroke;
};
Style style_of(Box::Kind kind) {
  switch (kind) {
    case Box::Kind::row:
      return {"#fafafa", "#9e9e9e"};
    case Box::Kind::host:
      return {"#eeeeee", "#9e9e9e"};
    case Box::Kind::bridge:
      return {"#fff3d0", "#b08d2f"};
    case Box::Kind::gpu:
      return {"#cdeccd", "#2e7d32"};
    case Box::Kind::hca:
      return {"#d3e4fd", "#1e5aa8"};
    case Box::Kind::dma:
      return {"#e6effd", "#1e5aa8"};
    case Box::Kind::management:
      break;
  }
  return {"#e4e4e4", "#8a8a8a"};
}

// One for each HCA that a GPU uses; red is kept for what is far or wrong.
constexpr std::array<const char*, 10> kRails{"#00796b", "#6a1b9a", "#1565c0", "#ad6800", "#558b2f",
                                             "#4527a0", "#00838f", "#6d4c41", "#37474f", "#827717"};

std::string n(double v) { return number(v, 1); }

class Writer {
 public:
  explicit Writer(const Report& report)
      : r_(report), m_(report.machine), layout_(lay_out(report, 66)) {
    for (const GpuReport& g : r_.gpus)
      if (g.hca && std::find(rails_.begin(), rails_.end(), *g.hca) == rails_.end())
        rails_.push_back(*g.hca);
  }

  std::string run() {
    const std::vector<std::string> notes = footer();
    const double width = layout_.width;
    const double height = layout_.height + 16 + 16 * static_cast<double>(notes.size());
    out_ = "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"" + number(width, 0) +
           "\" height=\"" + number(height, 0) + "\" viewBox=\"0 0 " + number(width, 0) + " " +
           number(height, 0) + "\" font-family=\"sans-serif\">\n" +
           "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n";
    text(16, 24, 15, "#000",
         node_name(m_) + ": " + std::to_string(m_.gpus.size()) + " GPU, " +
             std::to_string(m_.hcas.size()) + " HCA, " + cpu_text(m_.host.cpu),
         "bold");
    legend();
    for (const Box& row : layout_.rows) draw(row);
    if (layout_.rows.empty()) text(16, 62, 12, kRed, "no GPU and no HCA known");
    for (const Route& route : layout_.routes) draw(route);
    double y = layout_.height + 4;
    for (const std::string& note : notes) text(16, y += 16, 12, kRed, note);
    return out_ + "</svg>\n";
  }

 private:
  void text(double x, double y, double size, const char* fill, const std::string& s,
            const char* weight = "normal", const char* anchor = "start") {
    out_ +=
        "<text x=\"" + n(x) + "\" y=\"" + n(y) + "\" font-size=\"" + n(size) + "\" fill=\"" + fill +
        "\"" +
        (std::string(weight) == "normal" ? "" : std::string(" font-weight=\"") + weight + "\"") +
        (std::string(anchor) == "start" ? "" : std::string(" text-anchor=\"") + anchor + "\"") +
        ">" + xml_escaped(s) + "</text>\n";
  }

  void swatch(double& x, const char* fill, const char* stroke, const std::string& word) {
    out_ += "<rect x=\"" + n(x) + "\" y=\"36\" width=\"16\" height=\"11\" rx=\"2\" fill=\"" + fill +
            "\" stroke=\"" + stroke + "\"/>\n";
    text(x + 21, 46, 11, "#333", word);
    x += 21 + 6.2 * static_cast<double>(word.size()) + 16;
  }
  void legend() {
    double x = 16;
    swatch(x, style_of(Box::Kind::gpu).fill, style_of(Box::Kind::gpu).stroke, "GPU");
    swatch(x, style_of(Box::Kind::hca).fill, style_of(Box::Kind::hca).stroke, "HCA");
    swatch(x, style_of(Box::Kind::bridge).fill, style_of(Box::Kind::bridge).stroke, "switch");
    swatch(x, style_of(Box::Kind::management).fill, style_of(Box::Kind::management).stroke,
           "not used");
    if (std::none_of(r_.gpus.begin(), r_.gpus.end(), [](const GpuReport& g) { return g.hca; }))
      return;
    for (int i = 0; i < 3; ++i) dot(x + 5 + 7 * i, 42, kRails[static_cast<std::size_t>(i)]);
    text(x + 26, 46, 11, "#333", "a GPU and its HCA have one colour;");
    text(x + 26 + 212, 46, 11, kRed, "red: beyond the switches");
  }
  void dot(double x, double y, const char* colour) {
    out_ += "<circle cx=\"" + n(x) + "\" cy=\"" + n(y) + "\" r=\"3.5\" fill=\"" + colour + "\"/>\n";
  }
  // Colours in the order in which GPUs use their HCAs.
  const char* colour(int rail) const {
    const auto at = std::find(rails_.begin(), rails_.end(), rail);
    return kRails[static_cast<std::size_t>(at - rails_.begin()) % kRails.size()];
  }

  std::string hover(const Box& b) const {
    if (b.kind == Box::Kind::gpu) {
      const Gpu& g = m_.gpus[static_cast<std::size_t>(b.index)];
      const std::string way = pair_text(r_.gpus[static_cast<std::size_t>(b.index)]);
      return gpu_name(g) + ": " + gpu_model(g) + " at " + g.pci.bus.text() + ", " +
             link_text(g.pci.link) + (way.empty() ? "" : "; " + way);
    }
    if ((b.kind == Box::Kind::hca || b.kind == Box::Kind::management) && b.index >= 0) {
      const Hca& h = m_.hcas[static_cast<std::size_t>(b.index)];
      std::string s = h.name + ": " + hca_model(h) +
                      (h.pci ? " at " + h.pci->bus.text() + ", " + link_text(h.pci->link) : "") +
                      ", " + ports_text(h);
      for (const LeftOut& l : r_.left_out)
        if (l.hca == b.index) s += "; not used: " + l.text;
      return s;
    }
    if (b.kind == Box::Kind::bridge) {
      const PciFunction& f = m_.bridges[static_cast<std::size_t>(b.index)].pci;
      return b.title + ", " + link_text(f.link) + (f.acs ? ", ACS " + f.acs->text() : "");
    }
    return b.title;
  }

  void draw(const Box& b) {
    const Style s = style_of(b.kind);
    const bool bad = !b.problems.empty();
    const bool device = b.kind >= Box::Kind::gpu;
    out_ += "<g><title>" + xml_escaped(hover(b)) + "</title><rect x=\"" + n(b.x) + "\" y=\"" +
            n(b.y) + "\" width=\"" + n(b.width) + "\" height=\"" + n(b.height) +
            "\" rx=\"4\" fill=\"" + s.fill + "\" stroke=\"" + (bad ? kRed : s.stroke) + "\"" +
            (bad ? " stroke-width=\"2\"" : "") +
            (b.kind == Box::Kind::dma ? " stroke-dasharray=\"4 3\"" : "") + "/>\n";
    text(b.x + 8, b.y + 14, b.kind == Box::Kind::row ? 13 : 11, device ? "#000" : "#444", b.title,
         device || b.kind == Box::Kind::row ? "bold" : "normal");
    double y = b.y + 15;
    for (const std::string& d : b.details) text(b.x + 8, y += kLineHeight, 9.5, "#444", d);
    if (b.rail >= 0) {
      y += kLineHeight;
      dot(b.x + 11, y - 3.5, colour(b.rail));
      text(b.x + 18, y, 9.5, b.far ? kRed : colour(b.rail), b.tag, "bold");
    }
    for (const std::string& p : b.problems) text(b.x + 8, y += kLineHeight, 10, kRed, p, "bold");
    out_ += "</g>\n";
    for (const Box& c : b.children) draw(c);
  }

  // A line with round corners.
  void draw(const Route& r) {
    const double turn = 5, way = r.x2 > r.x1 ? turn : -turn;
    const GpuReport& g = r_.gpus[static_cast<std::size_t>(r.gpu)];
    out_ += "<g><title>" + xml_escaped(pair_text(g)) + "</title><path d=\"M" + n(r.x1) + " " +
            n(r.y1) + " V" + n(r.y - turn) + " q0 " + n(turn) + " " + n(way) + " " + n(turn) +
            " H" + n(r.x2 - way) + " q" + n(way) + " 0 " + n(way) + " " + n(-turn) + " V" +
            n(r.y2) + "\" stroke=\"" + colour(r.rail) +
            "\" stroke-width=\"2\" fill=\"none\"/></g>\n";
  }

  std::string pair_text(const GpuReport& g) const {
    if (!g.hca) return {};
    const PairReport& p = r_.pair(g.gpu, *g.hca);
    return gpu_name(m_.gpus[static_cast<std::size_t>(g.gpu)]) + " - " +
           m_.hcas[static_cast<std::size_t>(*g.hca)].name + ": " + class_text(p) + ", NCCL " +
           runs_text(p.host_runs) + ", GPU-initiated " + runs_text(p.device_runs) +
           "; the hardware allows " + std::string(name_of(p.device.mode));
  }

  // Warnings, one line each, the same kind once.
  std::vector<std::string> footer() const {
    std::map<std::string, std::pair<std::string, int>> by_code;
    for (const TopologyWarning& w : m_.warnings) {
      if (w.code == "MGMT_NIC") continue;
      auto& [first, count] = by_code.try_emplace(w.code, w.text, 0).first->second;
      ++count;
    }
    std::vector<std::string> out;
    if (m_.hcas.empty() && !m_.gpus.empty())
      out.emplace_back("no HCA found: GPUs of this node reach no other node by RDMA");
    for (const auto& [code, what] : by_code)
      out.push_back(code + ": " + what.first +
                    (what.second > 1 ? " (and " + std::to_string(what.second - 1) + " more)" : ""));
    return out;
  }

  const Report& r_;
  const Machine& m_;
  const Layout layout_;
  std::vector<int> rails_;  // HCAs in use
  std::string out_;
};

}  // namespace

std::string report_svg(const Report& report) { return Writer(report).run(); }

}  // namespace twinpath::tools::topo
