#include "tools/topo/svg.h"

#include <algorithm>
#include <array>
#include <map>

#include "tools/topo/names.h"
#include "tools/topo/svg_layout.h"
#include "topology/xml_parser.h"

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

// Curves of near pairs, one after the other; red is kept for what is far.
constexpr std::array<const char*, 8> kCurves{"#00796b", "#6a1b9a", "#1565c0", "#ad6800",
                                             "#2e7d32", "#4527a0", "#00838f", "#6d4c41"};

std::string n(double v) { return number(v, 1); }

struct Arc {
  std::string path;
  double x = 0, y = 0;  // where its label goes
};
// Side by side: an arc below both.  One above the other: between the edges that face each other.
Arc arc_between(const Box& a, const Box& b, double sag) {
  const bool beside = a.y < b.bottom() && b.y < a.bottom();
  const Box& high = a.y <= b.y ? a : b;
  const Box& low = a.y <= b.y ? b : a;
  const double x1 = high.middle(), x2 = low.middle(), y1 = high.bottom();
  const double y2 = beside ? low.bottom() : low.y;
  const double bend = beside ? std::max(y1, y2) + sag : y1 + (y2 - y1) / 2;
  Arc arc;
  arc.path = "M" + n(x1) + " " + n(y1) + " C" + n(x1) + " " + n(bend) + " " + n(x2) + " " +
             n(bend) + " " + n(x2) + " " + n(y2);
  if (beside) {
    arc.x = (x1 + x2) / 2;
    arc.y = (y1 + y2) / 8 + bend * 3 / 4 + 3;
  } else {
    // In the gap right below the upper one, where there is no text.
    arc.x = x1 + (x2 - x1) * 0.1;
    arc.y = y1 + 13;
  }
  return arc;
}

class Writer {
 public:
  explicit Writer(const Report& report)
      : r_(report), m_(report.machine), layout_(lay_out(report, 66)) {}

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
    for (const auto& [hca, box] : dma_) pair_line(hca, *box);
    for (const GpuReport& g : r_.gpus) curve(g);
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
  void stroke_sample(double& x, const char* colour, const char* dash, const std::string& word) {
    out_ += "<path d=\"M" + n(x) + " 42 h20\" stroke=\"" + colour +
            "\" stroke-width=\"2.5\" fill=\"none\"" + dash + "/>\n";
    text(x + 25, 46, 11, "#333", word);
    x += 25 + 6.2 * static_cast<double>(word.size()) + 16;
  }
  void legend() {
    double x = 16;
    swatch(x, style_of(Box::Kind::gpu).fill, style_of(Box::Kind::gpu).stroke, "GPU");
    swatch(x, style_of(Box::Kind::hca).fill, style_of(Box::Kind::hca).stroke, "HCA");
    swatch(x, style_of(Box::Kind::bridge).fill, style_of(Box::Kind::bridge).stroke, "switch");
    swatch(x, style_of(Box::Kind::management).fill, style_of(Box::Kind::management).stroke,
           "not used");
    stroke_sample(x, kCurves[0], "", "chosen HCA");
    stroke_sample(x, kRed, "", "chosen, beyond the switches");
    if (std::any_of(m_.hcas.begin(), m_.hcas.end(), [](const Hca& h) { return h.data_direct; }))
      stroke_sample(x, "#1e5aa8", " stroke-dasharray=\"4 3\"", "same card (data direct)");
  }

  std::string hover(const Box& b) const {
    if (b.kind == Box::Kind::gpu) {
      const Gpu& g = m_.gpus[static_cast<std::size_t>(b.index)];
      return gpu_name(g) + ": " + gpu_model(g) + " at " + g.pci.bus.text() + ", " +
             link_text(g.pci.link);
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
    double y = b.y + 14;
    if (!b.detail.empty()) text(b.x + 8, y += 14, 9.5, "#444", b.detail);
    for (const std::string& p : b.problems) text(b.x + 8, y += 12, 10, kRed, p, "bold");
    out_ += "</g>\n";
    for (const Box& c : b.children) draw(c);
    if (b.kind == Box::Kind::gpu) gpus_[b.index] = &b;
    if (b.kind == Box::Kind::hca || b.kind == Box::Kind::management) hcas_[b.index] = &b;
    if (b.kind == Box::Kind::dma && b.index >= 0) dma_[b.index] = &b;
  }

  // From the physical function to the data-direct function of one card, between the sides that
  // face each other.
  void pair_line(int hca, const Box& dma) {
    const auto it = hcas_.find(hca);
    if (it == hcas_.end()) return;
    const Box& pf = *it->second;
    const bool right = pf.x > dma.x;
    const double x1 = right ? pf.x : pf.x + pf.width, y1 = pf.y + pf.height / 2;
    const double x2 = right ? dma.x + dma.width : dma.x, y2 = dma.y + dma.height / 2;
    const double bend = right ? 16 : -16;
    out_ += "<path d=\"M" + n(x1) + " " + n(y1) + " C" + n(x1 - bend) + " " + n(y1) + " " +
            n(x2 + bend) + " " + n(y2) + " " + n(x2) + " " + n(y2) +
            "\" stroke=\"#1e5aa8\" stroke-width=\"1.5\" stroke-dasharray=\"4 3\" fill=\"none\"/>\n";
  }

  void curve(const GpuReport& g) {
    if (!g.hca) return;
    const auto gpu = gpus_.find(g.gpu);
    // GPU data goes through the data-direct function where there is one.
    const auto dma = dma_.find(*g.hca);
    const auto pf = hcas_.find(*g.hca);
    if (gpu == gpus_.end() || (dma == dma_.end() && pf == hcas_.end())) return;
    const Box& a = *gpu->second;
    const Box& b = dma != dma_.end() ? *dma->second : *pf->second;
    const PairReport& p = r_.pair(g.gpu, *g.hca);
    const bool far = p.distance() > Distance::c2c;
    const char* colour = far ? kRed : kCurves[static_cast<std::size_t>(g.gpu) % kCurves.size()];
    // Long curves of neighbours would lie on each other.
    const Arc arc = arc_between(a, b, far ? 10 + 8 * static_cast<double>(g.gpu % 2) : 12);
    const std::string label = gpu_name(m_.gpus[static_cast<std::size_t>(g.gpu)]) + " - " +
                              m_.hcas[static_cast<std::size_t>(*g.hca)].name + ": " +
                              class_text(p) + ", NCCL " + runs_text(p.host_runs) +
                              ", GPU-initiated " + runs_text(p.device_runs) +
                              "; the hardware allows " + std::string(name_of(p.device.mode));
    out_ += "<g><title>" + xml_escaped(label) + "</title><path d=\"" + arc.path + "\" stroke=\"" +
            colour + "\" stroke-width=\"2.5\" fill=\"none\"/>\n";
    // The class on the curve, on a white ground.
    const std::string word = class_text(p);
    const double half = 3.4 * static_cast<double>(word.size()) + 2;
    out_ += "<rect x=\"" + n(arc.x - half) + "\" y=\"" + n(arc.y - 9) + "\" width=\"" +
            n(2 * half) + "\" height=\"12\" rx=\"3\" fill=\"white\" stroke=\"" + colour +
            "\" stroke-width=\"0.8\"/>\n";
    text(arc.x, arc.y, 9.5, colour, word, "bold", "middle");
    out_ += "</g>\n";
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
    for (const auto& [code, what] : by_code)
      out.push_back(code + ": " + what.first +
                    (what.second > 1 ? " (and " + std::to_string(what.second - 1) + " more)" : ""));
    return out;
  }

  const Report& r_;
  const Machine& m_;
  const Layout layout_;
  std::map<int, const Box*> gpus_, hcas_, dma_;
  std::string out_;
};

}  // namespace

std::string report_svg(const Report& report) { return Writer(report).run(); }

}  // namespace twinpath::tools::topo
