#!/usr/bin/env python3
"""Holds classes of the product to a size.

usage: classes.py ROOT | classes.py --list ROOT | classes.py --self-test

No class has more than MOST_DATA data members or MOST_FUNCTIONS member functions of its own: beyond
that nobody keeps in mind what each of them may change, and its parts cannot be tested alone.  BIGGER
has those that do, with their figures, which may only fall: whoever makes such a class smaller lowers
its row, and takes it out when it is no longer needed.  A struct counts like a class, unless it is a
record: data alone.  Not counted: static members, constructors, destructors, deleted functions, friends
and types; members of a base are the base's.  --list shows all figures.
"""
import pathlib
import re
import sys

MOST_DATA, MOST_FUNCTIONS = 20, 40
FOLDERS = ("plugin", "topology", "proxy", "gda")
BIGGER = {}

CALL = "@"  # stands for what is in parentheses

NOISE = re.compile(r'//[^\n]*|/\*.*?\*/|R"\((?:.|\n)*?\)"|"(?:\\.|[^"\\\n])*"'
                   r"|(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+'|^[ \t]*#(?:\\\n|[^\n])*|\[\[[^\]]*\]\]", re.S | re.M)
HEAD = re.compile(r"\b(class|struct|union)\s+(?:alignas\s*\([^)]*\)\s*)?([A-Za-z_]\w*)"
                  r"(?:\s*<[^;{]*>)?(?:\s+final)?\s*(?::[^;{}()]*(?:\([^;{}]*\)[^;{}]*)?)?\{")
ATTRIBUTE = re.compile(r"\b(?:alignas|__attribute__|decltype|noexcept)\s*\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)")
NO_MEMBER = re.compile(r"(?:friend|using|typedef|enum|static_assert|static|template\s*<.*>\s*(?:friend|using|static|class"
                       r"|struct))\b|(?:class|struct|union)\s+\w+$")


def body_end(text, begin):
    """Behind the brace that closes the one at `begin`."""
    depth = 0
    for at in range(begin, len(text)):
        depth += (text[at] == "{") - (text[at] == "}")
        if depth == 0:
            return at + 1
    return len(text)


def statements(body):
    """Declarations of a class's body; what is in braces is gone, but for `{}` in its place."""
    now, at = "", 0
    while at < len(body):
        c = body[at]
        if c == "{":
            at = body_end(body, at)
            flat = re.sub(r"\([^()]*\)", "()", re.sub(r"\([^()]*\)", "()", now))
            base = re.search(r"\)[\w\s]*:(?!:)", flat) and re.search(r"[\w>]\s*$", now)  # or member of a constructor
            now += "{}"
            rest = body[at:].lstrip()[:1]
            # A function's body ends it; an initializer or a type goes on to the semicolon.
            if base or now.count("(") > now.count(")"):
                continue
            if rest != ";" and rest != "," and "(" in flat and not re.match(r"\s*(?:class|struct|union|enum)\b", flat):
                yield now
                now = ""
            continue
        if c == ";":
            yield now
            now = ""
        elif c == ":" and re.fullmatch(r"\s*(?:public|private|protected)\s*", now):
            now = ""
        else:
            now += c
        at += 1


def flattened(text):
    """Without what is in parentheses or angle brackets."""
    for pattern, flat in ((r"\([^()]*\)", CALL), (r"<[^<>()]*>", "")):
        before = None
        while before != text:
            before, text = text, re.sub(pattern, flat, text)
    return text


def count(name, body):
    """Data members, member functions."""
    data = functions = 0
    for statement in statements(body):
        s = re.sub(r"\s+", " ", statement).strip()
        s = re.sub(r"\bexplicit\s*\([^)]*\)", "", s)
        s = ATTRIBUTE.sub("", re.sub(r"\bTP_\w+|\b(?:mutable|constexpr|inline|virtual|extern|explicit)\b", "", s))
        s = re.sub(r"operator\s*(?:\(\)|[^\w\s(]+)", "operator_", s)
        s = re.sub(r"\s+", " ", s).strip()
        if re.match(r"(?:class|struct|union|enum)\b[^{]*\{\}", s):
            s = re.sub(r"^[^{]*\{\} ?", "T ", s)  # a type, perhaps with a member of it
            if s.strip() == "T":
                continue
        s = re.sub(r"^template\s*", "template ", s)
        if not s or NO_MEMBER.match(s):
            continue
        flat = flattened(s.replace("->", " ").replace("<=>", "").replace("<<", "").replace(">>", "> >"))
        head = re.split(r"=|\{", flat)[0]
        if CALL in head and not re.search(r"\(\s*\*", s.split("=")[0]):
            if re.search(r"=\s*delete", flat) or re.match(rf"(?:template\s*)?~?{name}\s*{CALL}", flat):
                continue
            functions += 1
        else:
            data += 1 + re.sub(r"\{\}|\[[^\]]*\]", "", flat).count(",")
    return data, functions


def classes(text):
    """Each class or struct with a body: name, data members, member functions."""
    text = NOISE.sub(lambda m: re.sub(r"[^\n]", " ", m[0]), text)
    for head in HEAD.finditer(text):
        if re.search(r"\benum\s*$", text[:head.start()]):
            continue
        body = text[head.end():body_end(text, head.end() - 1) - 1]
        data, functions = count(head[2], body)
        yield head[1], head[2], data, functions


def self_test():
    text = """
    struct Record { int a = 0, b{1}; std::array<int, 3> c{}; char d[4]; };
    template <class T> class Big final : public Base<T>, private Other {  // int no;
     public:
      explicit Big(int x) : a_(x), b_{x} { f(); }
      ~Big() override;
      Big(const Big&) = delete;
      Big& operator=(const Big&) = delete;
      bool operator()(int x) const { return x < 3; }
      friend class X;
      friend bool operator==(const Big&, const Big&) = default;
      static int make();
      static constexpr int kMost = f(1);
      using Map = std::map<int, int>;
      enum class State : int { a, b };
      enum class Other { c } other_ = Other::c;
      struct Inner { int i = 0; int g() { return i; } };
      struct Pair { int x; } pair_;
      template <class F> void each(F&& f) { for (;;) f(); }
      [[nodiscard]] int call(std::function<void(int)> f = [](int) {}) const noexcept;
      auto size() const -> std::size_t { return 0; }
      void h() override;
     private:
      TP_APART int slow(int);
      std::function<void(int, int)> f_;
      void (*pointer_)(int) = nullptr;
      std::map<int, std::pair<int, int>> map_ = {{1, {2, 3}}};
      alignas(64) std::atomic<int> count_{0};
      int x_ = f(1), *y_ = nullptr;
      const char* text_ = ";{";
      std::int64_t most_ = 1'000'000;
      Big* const next_;
    };
    enum class No { a };
    class Forward;
    """
    want = {("struct", "Record", 4, 0), ("class", "Big", 11, 6), ("struct", "Inner", 1, 1), ("struct", "Pair", 1, 0)}
    found = set(classes(text))
    for line in sorted(found ^ want):
        print("found" if line in found else "not found", *line)
    print(f"{len(found & want)} of {len(want)} classes counted right")
    return found != want


def main():
    if sys.argv[1] == "--self-test":
        return self_test()
    root, wrong, seen = pathlib.Path(sys.argv[-1]), 0, set()
    for file in sorted(p for f in FOLDERS for p in (root / f).rglob("*") if p.suffix in (".h", ".cc")):
        path = file.relative_to(root).as_posix()
        for kind, name, data, functions in classes(file.read_text()):
            if sys.argv[1] == "--list":
                print(f"{data:4d} {functions:4d}  {path}: {name}")
            key = f"{path}: {name}"
            over = functions > MOST_FUNCTIONS or data > MOST_DATA and functions > 0
            if over and key not in BIGGER:
                print(f"{key} has {data} data members and {functions} functions: make parts of it, each tested alone")
                wrong += 1
            elif key in BIGGER:
                seen.add(key)
                most = BIGGER[key]
                if data > most[0] or functions > most[1]:
                    print(f"{key} has {data} data members and {functions} functions, more than {most}: make parts of it")
                    wrong += 1
                elif not over:
                    print(f"{key} is no longer too big: take its row out of BIGGER")
                    wrong += 1
    for key in sorted(BIGGER.keys() - seen):
        print(f"{key} is not there: take its row out of BIGGER")
        wrong += 1
    print("the classes are no bigger than they were" if not wrong else f"{wrong} to be mended")
    return wrong != 0


sys.exit(main())
