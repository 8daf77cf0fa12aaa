"""twinpath-topo promises nothing that this version does not do: modes, adapters, GPUs."""
import json
import os
import tempfile
import unittest

from topo_test import Scratch, topo


class ThisVersion(Scratch):
    """What the hardware allows is not what this version does; both are said, apart."""

    PCI = '<pci busid="{}" class="{}" vendor="{}" device="{}">{}</pci>'
    GPU = PCI.format("0000:03:00.0", "0x030200", "0x10de", "0x2330", '<gpu dev="0" sm="90" gdr="1"/>')

    def machine_of(self, *functions):
        return self.spill("m.xml", '<system version="1"><cpu numaid="0"><pci busid="0000:01:00.0" '
                          'class="0x060400">' + "".join(functions) + "</pci></cpu></system>")

    def adapter(self, name, vendor, device):
        return self.PCI.format("0000:04:00.0", "0x020000", vendor, device,
                               f'<nic><net name="{name}" speed="400000" port="1"/></nic>')

    def picture(self, source):
        with tempfile.TemporaryDirectory() as folder:
            file = os.path.join(folder, "x.svg")
            self.assertEqual(topo("--input", source, "--svg", file).returncode, 0)
            with open(file, encoding="utf-8") as svg:
                return svg.read()

    def first_pair(self, source):
        return json.loads(topo("--input", source, "--json").stdout)["pairs"][0]

    def test_an_adapter_reads_the_queues_of_kernels_itself_only_where_that_is_asked_for(self):
        source = self.machine_of(self.GPU, self.adapter("mlx5_0", "0x15b3", "0x1021"))
        pair = self.first_pair(source)
        self.assertEqual((pair["mode"], pair["reason"]), ("PROXY-GDR", "NOT_ASKED"))
        self.assertEqual(pair["hardware"]["mode"], "GDA-P")
        self.assertEqual((pair["host_driven"]["mode"], pair["host_driven"]["reason"]),
                         ("PROXY-GDR", None))
        text = topo("--input", source).stdout
        self.assertRegex(text, r"GPU0 .* PROXY-GDR \(I4 R2 W2\) +PROXY-GDR \(NOT_ASKED\) +GDA-P\n")
        self.assertNotIn("has not been tried", text)  # what this version never tries
        why = topo("--input", source, "why", "GPU0", "mlx5_0").stdout
        self.assertIn("GPU-initiated, to a peer placed alike: PROXY-GDR (the hardware allows GDA-P)",
                      why)
        self.assertRegex(why, r"this version +PROXY-GDR +NOT_ASKED: ")
        check = topo("--input", source, "check").stdout
        self.assertNotIn("PeerMappingOverride=1 in", check)
        peer = json.loads(topo("--input", source, "--peer", source, "--json").stdout)["peer"]
        for way in peer["pairs"][0]["gpu_initiated"].values():
            self.assertEqual((way["mode"], way["hardware"]["mode"]), ("PROXY-GDR", "GDA-P"))

    def test_adapters_that_the_plugin_leaves_out(self):
        for name, vendor, device, transport in (("rdmap4s0", "0x1d0f", "0xefa2", "EFA"),
                                                ("cxi0", "0x17db", "0x0501", "Slingshot"),
                                                ("usnic_0", "0x1137", "0x0043", "usNIC")):
            with self.subTest(transport):
                source = self.machine_of(self.GPU, self.adapter(name, vendor, device))
                pair = self.first_pair(source)
                self.assertEqual((pair["mode"], pair["reason"], pair["host_driven"]["mode"]),
                                 (None, "HCA_TRANSPORT", None))
                report = json.loads(topo("--input", source, "--json").stdout)
                self.assertEqual(report["selection"][0]["hca"], None)
                self.assertEqual(report["not_used"][0]["code"], "HCA_TRANSPORT")
                text = topo("--input", source).stdout
                self.assertNotIn("PROXY", text)
                self.assertRegex(text, name + r" +HCA_TRANSPORT: it speaks " + transport)
                check = topo("--input", source, "check")
                self.assertEqual(check.returncode, 2)
                self.assertRegex(check.stdout, "WARN +transport +" + name)
                self.assertRegex(check.stdout, "FAIL +hca ")
                why = topo("--input", source, "why", "GPU0", name).stdout
                self.assertIn("to a peer placed alike: none (the hardware allows ", why)
                self.assertIn(">no usable HCA:<", self.picture(source))
                # At the GPU, and at the adapter.
                self.assertEqual(self.picture(source).count(f">{transport}, not InfiniBand or RoCE<"), 2)

    def test_adapters_left_out_are_one_line(self):
        efas = [self.adapter(f"rdmap{i}s0", "0x1d0f", "0xefa2").replace(":04:", f":{i + 4:02x}:")
                for i in range(9)]
        lines = [line for line in topo("--input", self.machine_of(self.GPU, *efas)).stdout.splitlines()
                 if "HCA_TRANSPORT" in line]
        self.assertEqual(len(lines), 1, lines)
        self.assertIn("9 (rdmap0s0 ... rdmap8s0)", lines[0])
        self.assertIn(">9 x EFA, not InfiniBand or RoCE<", self.picture(self.machine_of(self.GPU, *efas)))

    def test_a_picture_says_that_there_is_no_adapter(self):
        self.assertIn("no HCA found", self.picture(self.machine_of(self.GPU)))
        down = self.adapter("mlx5_0", "0x15b3", "0x1021")
        self.assertNotIn("no usable HCA", self.picture(self.machine_of(self.GPU, down)))

    def test_gpus_of_amd_are_not_served(self):
        adapter = self.adapter("mlx5_0", "0x15b3", "0x1021")
        for gpu in (self.GPU.replace("0x10de", "0x1002"),  # by its id
                    '<pci busid="0000:03:00.0" class="0x038000"><gpu dev="0" sm="104" gcn="910" '
                    'gdr="1"/></pci>'):  # as RCCL writes it
            source = self.machine_of(gpu, adapter)
            pair = self.first_pair(source)
            self.assertEqual((pair["mode"], pair["reason"], pair["host_driven"]["mode"]),
                             (None, "GPU_VENDOR", None))
            text = topo("--input", source).stdout
            self.assertIn("none (GPU_VENDOR)", text)
            self.assertIn("GPUs not served\n  GPU0  GPU_VENDOR: ", text)
            check = topo("--input", source, "check")
            self.assertEqual(check.returncode, 2)
            self.assertRegex(check.stdout, "FAIL +gpu-vendor +GPU0")
            self.assertIn("this version serves no AMD GPUs", self.picture(source))

    def test_a_data_direct_function_is_used(self):
        pair = json.loads(self.replay("grace-data-direct", "--json").stdout)["pairs"][0]
        self.assertEqual((pair["class"], pair["host_driven"]["hardware"]["mode"],
                          pair["host_driven"]["mode"], pair["host_driven"]["reason"]),
                         ("PXB", "PROXY-GDR", "PROXY-GDR", None))


if __name__ == "__main__":
    unittest.main()
