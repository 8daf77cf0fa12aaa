#pragma once
// What this was built from.  Static strings; any thread.  In a library of their own
// (plugin/base/meson.build): linked by what tells its version, and by nothing else.

namespace twinpath {

// As meson.build has it: "0.1.0".
const char* built_version();
// "0123456789ab", with "-dirty" behind it where files differed from the commit, or "no commit".
const char* built_commit();
// Both: "0.1.0 (0123456789ab)".
const char* built_from();

}  // namespace twinpath
