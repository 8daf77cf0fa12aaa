#pragma once
// Bridges, PCI devices and adapters of a file of hwloc (internal to hwloc_xml).
#include <string>
#include <string_view>
#include <vector>

#include "topology/read/io_tree.h"
#include "topology/read/xml_parser.h"

namespace twinpath {

// Whether an object of this type stands in the I/O part of the tree.
bool is_hwloc_io(std::string_view type);

// Appends what an <object> of that part and those below it say.  False and `why` for values that
// are none.
bool read_hwloc_io(const XmlElement& object, std::vector<IoObject>& out, std::string& why);

}  // namespace twinpath
