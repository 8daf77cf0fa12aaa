#include "tools/common/plot.h"

#include <algorithm>
#include <array>
#include <cstdio>

#include "tools/common/plot_axis.h"

namespace twinpath::tools {
namespace {

constexpr double kLeft = 76, kTop = 34, kBottom = 46;  // of a panel, around its field
constexpr double kField = 560, kFieldHeight = 260;     // width, least height
constexpr double kLine = 16;                           // of the legend and the heading
constexpr double kLetter = 6.4;                        // of 11 px, about

// Okabe and Ito's: told apart by colour-blind eyes as well.  With the marks below, 40 pairs.
constexpr std::array<const char*, 8> kColours{"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                              "#56b4e9", "#e69f00", "#000000", "#8c6d31"};
constexpr std::array<const char*, 5> kDashes{"", "6 3", "2 2", "8 2 2 2", "1 3"};

std::string n(double v) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f", v);
  return text;
}

std::string escaped(const std::string& s) {
  std::string out;
  for (const char c : s) {
    if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else if (c == '&')
      out += "&amp;";
    else if (c == '"')
      out += "&quot;";
    else if (static_cast<unsigned char>(c) < 0x20)  // XML has no such letters
      out += ' ';
    else
      out += c;
  }
  return out;
}

class Writer {
 public:
  std::string run(const std::vector<std::string>& heading, const std::vector<PlotPanel>& panels) {
    double width = kLeft + kField + 24;
    for (const PlotPanel& p : panels)
      for (const PlotSeries& s : p.series)
        width = std::max(width, kLeft + kField + 56 + kLetter * static_cast<double>(s.name.size()));
    double y = 12;
    for (const std::string& line : heading) {
      width = std::max(width, 32 + kLetter * static_cast<double>(line.size()));
      y += kLine;
      text(16, y, line, &line == &heading[0] ? "font-weight=\"bold\"" : "");
    }
    for (const PlotPanel& p : panels) y = panel(p, y + 8);
    if (panels.empty()) text(16, y += kLine, "no figures to draw");
    y += 12;
    return "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"" + n(width) + "\" height=\"" + n(y) +
           "\" viewBox=\"0 0 " + n(width) + " " + n(y) +
           "\" font-family=\"sans-serif\" font-size=\"11\">\n<rect width=\"100%\" height=\"100%\" "
           "fill=\"white\"/>\n" +
           out_ + "</svg>\n";
  }

 private:
  void text(double x, double y, const std::string& s, const std::string& more = "") {
    out_ += "<text x=\"" + n(x) + "\" y=\"" + n(y) + "\"" + (more.empty() ? "" : " " + more) + ">" +
            escaped(s) + "</text>\n";
  }
  void line(double x1, double y1, double x2, double y2, const std::string& more) {
    out_ += "<line x1=\"" + n(x1) + "\" y1=\"" + n(y1) + "\" x2=\"" + n(x2) + "\" y2=\"" + n(y2) +
            "\" " + more + "/>\n";
  }

  // Gives where it ends.
  double panel(const PlotPanel& p, double top) {
    const double height = std::max(kFieldHeight, kLine * static_cast<double>(p.series.size()) + 8);
    const double x0 = kLeft, y0 = top + kTop + height;  // the field's lower left corner
    const Scale x(p.x, values(p, true), x0, x0 + kField), y(p.y, values(p, false), y0, y0 - height);
    text(x0, top + 20, p.title, "font-weight=\"bold\" font-size=\"13\"");
    for (const Tick& t : x.ticks()) {
      line(t.at, y0, t.at, y0 - height, "stroke=\"#e0e0e0\"");
      text(t.at, y0 + 15, t.label, "text-anchor=\"middle\"");
    }
    for (const Tick& t : y.ticks()) {
      line(x0, t.at, x0 + kField, t.at, "stroke=\"#e0e0e0\"");
      text(x0 - 6, t.at + 4, t.label, "text-anchor=\"end\"");
    }
    out_ += "<rect x=\"" + n(x0) + "\" y=\"" + n(y0 - height) + "\" width=\"" + n(kField) +
            "\" height=\"" + n(height) + "\" fill=\"none\" stroke=\"#757575\"/>\n";
    text(x0 + kField / 2, y0 + 34, p.x.title, "text-anchor=\"middle\"");
    const std::string turned = n(18) + " " + n(y0 - height / 2);
    text(18, y0 - height / 2, p.y.title,
         "text-anchor=\"middle\" transform=\"rotate(-90 " + turned + ")\"");
    if (p.line_at)
      line(x0, y.at(*p.line_at), x0 + kField, y.at(*p.line_at),
           "stroke=\"#757575\" stroke-width=\"1.5\" stroke-dasharray=\"4 4\"");
    for (std::size_t i = 0; i < p.series.size(); ++i) series(p.series[i], i, x, y);
    for (std::size_t i = 0; i < p.series.size(); ++i)
      legend(p.series[i].name, i, x0 + kField + 10,
             y0 - height + 14 + kLine * static_cast<double>(i));
    return y0 + kBottom;
  }

  static std::vector<double> values(const PlotPanel& p, bool of_x) {
    std::vector<double> all;
    if (!of_x && p.line_at) all.push_back(*p.line_at);
    for (const PlotSeries& s : p.series)
      for (const PlotPoint& point : s.points) {
        all.push_back(of_x ? point.x : point.y);
        if (!of_x && point.low) all.push_back(*point.low);
        if (!of_x && point.high) all.push_back(*point.high);
      }
    return all;
  }

  static std::string stroke(std::size_t i) {
    const std::string dash = kDashes[i / kColours.size() % kDashes.size()];
    return std::string("stroke=\"") + kColours[i % kColours.size()] + "\" stroke-width=\"1.8\"" +
           (dash.empty() ? "" : " stroke-dasharray=\"" + dash + "\"");
  }
  void mark(double x, double y, std::size_t i) {
    out_ += "<circle cx=\"" + n(x) + "\" cy=\"" + n(y) + "\" r=\"2.8\" fill=\"" +
            kColours[i % kColours.size()] + "\"/>\n";
  }
  void series(const PlotSeries& s, std::size_t i, const Scale& x, const Scale& y) {
    const std::string colour = std::string("stroke=\"") + kColours[i % kColours.size()] + "\"";
    std::string way;
    for (const PlotPoint& p : s.points)
      way += (way.empty() ? "M" : " L") + n(x.at(p.x)) + " " + n(y.at(p.y));
    if (s.points.size() > 1) out_ += "<path d=\"" + way + "\" fill=\"none\" " + stroke(i) + "/>\n";
    for (const PlotPoint& p : s.points) {
      if (p.low && p.high) {
        const double px = x.at(p.x), low = y.at(*p.low), high = y.at(*p.high);
        line(px, low, px, high, colour);
        line(px - 4, low, px + 4, low, colour);
        line(px - 4, high, px + 4, high, colour);
      }
      mark(x.at(p.x), y.at(p.y), i);
    }
  }
  void legend(const std::string& name, std::size_t i, double x, double y) {
    line(x, y - 4, x + 26, y - 4, stroke(i));
    mark(x + 13, y - 4, i);
    text(x + 32, y, name);
  }

  std::string out_;
};

}  // namespace

std::string plots_svg(const std::vector<std::string>& heading,
                      const std::vector<PlotPanel>& panels) {
  return Writer().run(heading, panels);
}

}  // namespace twinpath::tools
