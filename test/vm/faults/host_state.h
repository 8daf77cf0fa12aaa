#pragma once
// Cases between two hosts about what each has: MTU, addresses, objects in the kernel.  They stand
// in the list of host_cases.cc.
#include "test/vm/faults/case.h"

namespace twinpath::test {

void mtu_hosts(Case& c);
void gid_foreign(Case& c);
void gid_same(Case& c);
void nothing_left(Case& c);

}  // namespace twinpath::test
