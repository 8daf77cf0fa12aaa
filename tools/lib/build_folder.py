#!/usr/bin/env python3
"""What tools/demo.sh wants to know of a Meson build folder.

usage: build_folder.py check FOLDER SOURCE     may it be used as it is?
       build_folder.py targets FOLDER NAME...  what these Meson targets make: lines "NAME FILE"

check: status 0 and, where figures from it mean something else than those of a release, one line on
stdout that says so; status 1 and one line with the remedy where it cannot be used; status 2 where
it only has to be configured again, because packages were missing when that was done last.
targets: names that the folder does not have are left out.
"""
import json
import pathlib
import sys


def load(folder, name):
    return json.loads((folder / "meson-info" / name).read_text(encoding="utf-8"))


def check(folder, source):
    other = "or use another folder: tools/demo.sh --build build-demo"
    try:
        made_from = load(folder, "meson-info.json")["directories"]["source"]
        options = {o["name"]: o["value"] for o in load(folder, "intro-buildoptions.json")}
        targets = {t["name"] for t in load(folder, "intro-targets.json")}
    except (OSError, ValueError, KeyError) as error:
        return 1, f"{folder}/ cannot be read as a Meson build folder ({error}): remove it, {other}"
    if pathlib.Path(made_from).resolve() != source.resolve():
        return 1, f"{folder}/ was set up for the sources in {made_from}: remove it, {other}"
    if options.get("b_sanitize", "none") != "none":
        return 1, (f"{folder}/ is set up with -Db_sanitize={options['b_sanitize']}, whose figures "
                   f"mean nothing: remove it, {other}")
    if options.get("tools") == "disabled":
        return 1, (f"{folder}/ is set up without tools: meson configure {folder} -Dtools=enabled, "
                   f"{other}")
    if "coll_perf" not in targets or "net_perf" not in targets:
        return 2, ""
    if options.get("optimization") not in ("2", "3"):
        return 0, (f"{folder}/ is set up as {options.get('buildtype')}, without optimization, and "
                   "is used as it is: figures are far below those of a release; for one: "
                   "tools/demo.sh --build build-demo")
    if options.get("buildtype") != "release":
        return 0, (f"{folder}/ is set up as {options.get('buildtype')} and is used as it is: "
                   "figures may be below those of a release; for one: "
                   "tools/demo.sh --build build-demo")
    return 0, ""


def targets(folder, names):
    root = pathlib.Path(load(folder, "meson-info.json")["directories"]["build"])
    by_name = {}
    for target in load(folder, "intro-targets.json"):
        by_name.setdefault(target["name"], []).append(target)
    for name in names:
        if len(by_name.get(name, [])) > 1:
            sys.exit(f"{folder}/ has several targets called {name}")
        for target in by_name.get(name, []):
            for file in target["filename"]:
                yield f"{name} {pathlib.Path(file).relative_to(root)}"


def main():
    if len(sys.argv) == 4 and sys.argv[1] == "check":
        status, text = check(pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3]))
        if text:
            print(text)
        return status
    if len(sys.argv) > 3 and sys.argv[1] == "targets":
        print("\n".join(targets(pathlib.Path(sys.argv[2]), sys.argv[3:])))
        return 0
    print(__doc__, file=sys.stderr)
    return 3


if __name__ == "__main__":
    sys.exit(main())
