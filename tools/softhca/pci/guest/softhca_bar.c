// SPDX-License-Identifier: BSD-3-Clause OR GPL-2.0
/* Shows BAR 2 of QEMU's device ivshmem-doorbell as BAR 0, where drivers of adapters look for their
 * registers.  softhca --pci is behind it. */
#include <linux/module.h>
#include <linux/pci.h>

#define SOFTHCA_VENDOR 0x1af4
#define SOFTHCA_DEVICE 0x1110
#define SOFTHCA_LEAST_BAR (1 << 20) /* somebody else's ivshmem may be smaller */

static void softhca_move(struct pci_dev *pdev)
{
	struct resource *to = &pdev->resource[0], *from = &pdev->resource[2];

	to->start = from->start;
	to->end = from->end;
	to->flags = from->flags & ~IORESOURCE_PREFETCH;
	to->parent = from->parent;
	from->start = from->end = 0;
	from->flags = 0;
	from->parent = NULL;
	pci_info(pdev, "softhca: registers at %pR\n", to);
}

static int __init softhca_bar_init(void)
{
	struct pci_dev *pdev = NULL;

	while ((pdev = pci_get_device(SOFTHCA_VENDOR, SOFTHCA_DEVICE, pdev))) {
		if (resource_size(&pdev->resource[2]) >= SOFTHCA_LEAST_BAR)
			softhca_move(pdev);
	}
	return 0;
}

static void __exit softhca_bar_exit(void)
{
}

module_init(softhca_bar_init);
module_exit(softhca_bar_exit);
MODULE_DESCRIPTION("Registers of a software HCA behind ivshmem-doorbell");
MODULE_LICENSE("Dual BSD/GPL");
