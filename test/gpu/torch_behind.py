#!/usr/bin/env python3
"""What PyTorch programs do right behind collectives, one process a GPU: does it end, is it right?

Each check runs in processes of its own, which are killed when they take longer than --limit; a
process may hang where nothing but SIGKILL ends it.  The parent imports no torch.

    torch_behind.py                                 all checks, all GPUs
    torch_behind.py --list
    torch_behind.py --check item,ddp --json
    torch_behind.py --reference plain.json          write the losses of training where the file
                                                    does not exist, compare with them where it does
    torch_behind.py --device cpu --nproc 2          the same over gloo, to test this script

The environment (NCCL_*, TWINPATH_*, PYTORCH_CUDA_ALLOC_CONF) goes to the processes as it is.
Exit status: 0 all right, 1 a check hung, failed or differed, 2 bad option, 3 no GPU or no torch.
"""
import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time

# ---------------------------------------------------------------------------------------------
# The checks: run in every rank.  `t` is torch, `dist` torch.distributed.  A check returns
# something that JSON can hold (losses) or nothing, and raises AssertionError for wrong data.


def value(t, shape, rank, step, dev):
    """Whole numbers that differ by rank and step; their sums are exact in float32."""
    count = 1
    for n in shape:
        count *= n
    flat = (t.arange(count, device=dev) * 7 + rank * 13 + step * 31) % 1009
    return flat.to(t.float32).reshape(shape)


def total(t, shape, ranks, step, dev):
    out = value(t, shape, 0, step, dev)
    for r in range(1, ranks):
        out = out + value(t, shape, r, step, dev)
    return out


def equal(t, got, want, what):
    wrong = int((got != want).sum())
    assert got.shape == want.shape and wrong == 0, f"{what}: {wrong} of {want.numel()} wrong"


def check_item(t, dist, c):
    for step in range(c.rounds):
        x = value(t, (1,), c.rank, step, c.dev)
        dist.all_reduce(x)
        got = x.item()
        want = sum((r * 13 + step * 31) % 1009 for r in range(c.ranks))
        assert got == want, f"round {step}: {got}, not {want}"


def check_cpu(t, dist, c):
    for size in (1, 1 << 10, 1 << 14, 1 << 18, 1 << 22):
        for step in range(c.rounds):
            x = value(t, (size,), c.rank, step, c.dev)
            dist.all_reduce(x)
            equal(t, x.cpu(), total(t, (size,), c.ranks, step, "cpu"), f".cpu() of {size * 4} B")


def check_to_gpu(t, dist, c):
    for step in range(c.rounds):
        x = value(t, (1 << 20,), c.rank, step, c.dev)
        dist.all_reduce(x)
        y = value(t, (1 << 22,), c.rank, step, "cpu").to(c.dev)  # from pageable memory
        z = t.tensor([float(step)], device=c.dev)
        equal(t, x, total(t, (1 << 20,), c.ranks, step, c.dev), "all_reduce")
        equal(t, y, value(t, (1 << 22,), c.rank, step, c.dev), ".to(GPU)")
        assert z.item() == step


def check_async(t, dist, c):
    for step in range(c.rounds):
        xs = [value(t, (1 << 18,), c.rank, step + i, c.dev) for i in range(4)]
        works = [dist.all_reduce(x, async_op=True) for x in xs]
        fresh = t.zeros(1 << 20, device=c.dev)
        del fresh
        for work in works:
            work.wait()
        for i, x in enumerate(xs):
            equal(t, x.cpu(), total(t, (1 << 18,), c.ranks, step + i, "cpu"), "async all_reduce")


def check_empty_cache(t, dist, c):
    if c.dev.type != "cuda":
        return
    for step in range(c.rounds):
        x = value(t, (1 << 20,), c.rank, step, c.dev)
        junk = t.empty(1 << 24, device=c.dev)
        del junk
        dist.all_reduce(x)
        t.cuda.empty_cache()  # cudaFree
        equal(t, x, total(t, (1 << 20,), c.ranks, step, c.dev), "all_reduce")


def check_pinned(t, dist, c):
    if c.dev.type != "cuda":
        return
    for step in range(c.rounds):
        x = value(t, (1 << 20,), c.rank, step, c.dev)
        dist.all_reduce(x)
        # A size that is new each time: the caching allocator has to ask CUDA.
        host = t.empty((1 << 20) * (step + 1), pin_memory=True)
        host[:1 << 20].copy_(x, non_blocking=True)
        t.cuda.synchronize()
        equal(t, host[:1 << 20], total(t, (1 << 20,), c.ranks, step, "cpu"), "copy to pinned memory")


SIZES = (1, 1 << 12, 1 << 20)  # elements of a rank's part


def check_all_gather(t, dist, c):
    for size in SIZES:
        for step in range(c.rounds):
            out = t.empty(c.ranks * size, device=c.dev)
            dist.all_gather_into_tensor(out, value(t, (size,), c.rank, step, c.dev))
            for r in range(c.ranks):
                equal(t, out[r * size:(r + 1) * size], value(t, (size,), r, step, c.dev),
                      "all_gather_into_tensor")
            parts = [t.empty(size, device=c.dev) for _ in range(c.ranks)]
            dist.all_gather(parts, value(t, (size,), c.rank, step, c.dev))
            for r, part in enumerate(parts):
                equal(t, part.cpu(), value(t, (size,), r, step, "cpu"), "all_gather")


def check_reduce_scatter(t, dist, c):
    for size in SIZES:
        for step in range(c.rounds):
            out = t.empty(size, device=c.dev)
            shape = (c.ranks * size,)
            dist.reduce_scatter_tensor(out, value(t, shape, c.rank, step, c.dev))
            want = total(t, shape, c.ranks, step, c.dev)[c.rank * size:(c.rank + 1) * size]
            equal(t, out, want, "reduce_scatter_tensor")


def check_all_to_all(t, dist, c):
    for size in SIZES:
        for step in range(c.rounds):
            out = t.empty(c.ranks * size, device=c.dev)
            dist.all_to_all_single(out, value(t, (c.ranks * size,), c.rank, step, c.dev))
            for r in range(c.ranks):
                theirs = value(t, (c.ranks * size,), r, step, c.dev)
                equal(t, out[r * size:(r + 1) * size], theirs[c.rank * size:(c.rank + 1) * size],
                      "all_to_all_single")


def check_broadcast(t, dist, c):
    for size in SIZES:
        for step in range(c.rounds):
            root = step % c.ranks
            x = value(t, (size,), c.rank, step, c.dev)
            dist.broadcast(x, src=root)
            equal(t, x.cpu(), value(t, (size,), root, step, "cpu"), "broadcast")
            y = value(t, (size,), c.rank, step, c.dev)
            dist.reduce(y, dst=root)
            if c.rank == root:
                equal(t, y.cpu(), total(t, (size,), c.ranks, step, "cpu"), "reduce")


def check_send_recv(t, dist, c):
    if c.ranks < 2:
        return
    right, left = (c.rank + 1) % c.ranks, (c.rank - 1) % c.ranks
    for size in SIZES:
        for step in range(c.rounds):
            got = t.empty(size, device=c.dev)
            mine = value(t, (size,), c.rank, step, c.dev)
            works = dist.batch_isend_irecv([dist.P2POp(dist.isend, mine, right),
                                            dist.P2POp(dist.irecv, got, left)])
            for work in works:
                work.wait()
            equal(t, got.cpu(), value(t, (size,), left, step, "cpu"), "isend, irecv")
    # One after the other, along the chain of ranks.
    for step in range(c.rounds):
        x = t.full((1 << 16,), float(step), device=c.dev)
        if c.rank > 0:
            dist.recv(x, src=left)
        if c.rank < c.ranks - 1:
            dist.send(x + 1, dst=right)
        assert x.sum().item() == (step + c.rank) * float(1 << 16), "send, recv"


def check_objects(t, dist, c):
    for step in range(c.rounds):
        out = [None] * c.ranks
        dist.all_gather_object(out, {"rank": c.rank, "text": "x" * (step * 1000 + c.rank)})
        for r, got in enumerate(out):
            assert got == {"rank": r, "text": "x" * (step * 1000 + r)}, f"all_gather_object of {r}"
        box = [("from", c.rank, step)]
        dist.broadcast_object_list(box, src=step % c.ranks)
        assert box == [("from", step % c.ranks, step)], f"broadcast_object_list: {box}"


def check_barrier(t, dist, c):
    for _ in range(c.rounds):
        dist.barrier()


def check_groups(t, dist, c):
    """More communicators: all ranks in reverse order, and each pair of neighbours."""
    everyone = dist.new_group(list(range(c.ranks)))
    pairs = [dist.new_group([r, (r + 1) % c.ranks]) for r in range(c.ranks)] if c.ranks > 2 else []
    for step in range(c.rounds):
        x = value(t, (1 << 16,), c.rank, step, c.dev)
        dist.all_reduce(x, group=everyone)
        equal(t, x.cpu(), total(t, (1 << 16,), c.ranks, step, "cpu"), "all_reduce of a group")
        for r, pair in enumerate(pairs):
            if c.rank in (r, (r + 1) % c.ranks):
                y = t.full((1 << 12,), float(c.rank + step), device=c.dev)
                dist.all_reduce(y, group=pair)
                assert y[-1].item() == r + (r + 1) % c.ranks + 2 * step, "all_reduce of a pair"


def make_model(t, kind):
    nn = t.nn
    t.manual_seed(1)
    if kind == "mlp":
        return nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 1024), nn.GELU(),
                             nn.Linear(1024, 256))
    layer = nn.TransformerEncoderLayer(d_model=256, nhead=4, dim_feedforward=1024, dropout=0.0,
                                       batch_first=True)
    return nn.TransformerEncoder(layer, num_layers=3, enable_nested_tensor=False)


def batch(t, c, kind, step):
    """Other data for each rank and step, the same in every run; something can be learnt."""
    shape = (64, 256) if kind == "mlp" else (8, 64, 256)
    make = t.Generator().manual_seed(1000 * step + c.rank)
    x = t.randn(shape, generator=make)
    return x.to(c.dev), x.flip(-1).sin().to(c.dev)


def train(t, dist, c, model, kind):
    optimizer = t.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for step in range(c.steps):
        x, y = batch(t, c, kind, step)
        loss = t.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        losses.append(mean.item() / c.ranks)
    assert all(l == l and abs(l) < 1e6 for l in losses), f"losses: {losses}"
    return losses


def train_ddp(kind):
    def run(t, dist, c):
        from torch.nn.parallel import DistributedDataParallel
        model = DistributedDataParallel(make_model(t, kind).to(c.dev))
        return train(t, dist, c, model, kind)
    return run


def train_fsdp(kind):
    def run(t, dist, c):
        try:
            from torch.distributed.fsdp import fully_shard
        except ImportError:  # before 2.6
            from torch.distributed._composable.fsdp import fully_shard
        from torch.distributed.device_mesh import init_device_mesh
        mesh = init_device_mesh(c.dev.type, (c.ranks,))
        model = make_model(t, kind).to(c.dev)
        parts = model.layers if kind != "mlp" else [m for m in model if len(list(m.parameters()))]
        for part in parts:
            fully_shard(part, mesh=mesh)
        fully_shard(model, mesh=mesh)
        return train(t, dist, c, model, kind)
    return run


CHECKS = {
    "barrier": check_barrier,
    "item": check_item,
    "cpu": check_cpu,
    "to-gpu": check_to_gpu,
    "async": check_async,
    "empty-cache": check_empty_cache,
    "pinned": check_pinned,
    "all-gather": check_all_gather,
    "reduce-scatter": check_reduce_scatter,
    "all-to-all": check_all_to_all,
    "broadcast": check_broadcast,
    "send-recv": check_send_recv,
    "objects": check_objects,
    "groups": check_groups,
    "ddp-mlp": train_ddp("mlp"),
    "ddp-transformer": train_ddp("transformer"),
    "fsdp2-mlp": train_fsdp("mlp"),
    "fsdp2-transformer": train_fsdp("transformer"),
}

# ---------------------------------------------------------------------------------------------
# A rank.


def play(args):
    import faulthandler
    # Where it hangs, in Python's words, shortly before the parent kills it.
    faulthandler.dump_traceback_later(max(1.0, args.limit - 2), exit=False)
    import torch as t
    import torch.distributed as dist
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if args.device == "cuda":
        t.cuda.set_device(rank)
        dev = t.device("cuda", rank)
        t.backends.cuda.matmul.allow_tf32 = False
    else:
        t.set_num_threads(1)
        dev = t.device("cpu")
    dist.init_process_group("nccl" if args.device == "cuda" else "gloo",
                            init_method=f"file://{args.store}", rank=rank, world_size=ranks)
    place = argparse.Namespace(rank=rank, ranks=ranks, dev=dev, rounds=args.rounds,
                               steps=args.steps)
    out = CHECKS[args.play](t, dist, place)
    if args.device == "cuda":
        t.cuda.synchronize()
    dist.barrier()
    with open(os.path.join(args.folder, f"result{rank}"), "w") as f:
        json.dump(out, f)
    dist.destroy_process_group()
    faulthandler.cancel_dump_traceback_later()


# ---------------------------------------------------------------------------------------------
# The parent.


def last_lines(path, count=3):
    """What a rank's log ends with, in one line."""
    with open(path, errors="replace") as f:
        lines = [line.strip() for line in f if line.strip()]
    return " | ".join(lines[-count:])[-400:]


def where_stuck(path):
    """The innermost Python frame of the main thread that faulthandler showed."""
    with open(path, errors="replace") as f:
        text = f.read()
    at = text.rfind("(most recent call first):\n  File")
    if at < 0:
        return ""
    frames = [l.strip() for l in text[at:].splitlines()[1:] if l.startswith("  File")]
    mine = [f for f in frames if "torch_behind" in f and " in check" in f or " in train" in f]
    return frames[0] + (f" < {mine[0]}" if mine and mine[0] != frames[0] else "")


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def run_check(name, args, ranks):
    """A row: check, verdict, seconds, detail, and result (of rank 0)."""
    row = {"check": name, "verdict": "ok", "ranks": ranks, "detail": "", "result": None}
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="torch_behind") as folder:
        logs = [os.path.join(folder, f"log{r}") for r in range(ranks)]
        processes = []
        port = free_port()
        for r in range(ranks):
            env = dict(os.environ, RANK=str(r), LOCAL_RANK=str(r), WORLD_SIZE=str(ranks),
                       MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
            command = [sys.executable, os.path.abspath(__file__), "--play", name, "--folder", folder,
                       "--store", os.path.join(folder, "store"), "--device", args.device, "--rounds",
                       str(args.rounds), "--steps", str(args.steps), "--limit", str(args.limit)]
            with open(logs[r], "w") as log:
                processes.append(subprocess.Popen(command, env=env, stdout=log, stderr=log,
                                                  stdin=subprocess.DEVNULL, start_new_session=True))
        failed = None
        while any(p.poll() is None for p in processes):
            if time.monotonic() - begin > args.limit:
                break
            failed = next((p for p in processes if p.returncode not in (None, 0)), None)
            if failed:
                time.sleep(2)  # the others may have something to say, too
                break
            time.sleep(0.05)
        codes = [p.poll() for p in processes]
        for p in processes:
            try:
                os.killpg(p.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        for p in processes:
            try:
                p.wait(timeout=20)
            except subprocess.TimeoutExpired:
                row["detail"] += "a process does not die; "
        bad = [r for r, code in enumerate(codes) if code not in (None, 0)]
        hung = [r for r, code in enumerate(codes) if code is None]
        if bad:
            row["verdict"] = "FAILED"
            row["detail"] += f"rank {bad[0]}, exit {codes[bad[0]]}: {last_lines(logs[bad[0]])}"
        elif hung:
            row["verdict"] = "HUNG"
            row["detail"] += "; ".join(f"rank {r}: {where_stuck(logs[r]) or last_lines(logs[r], 1)}"
                                       for r in hung)
        else:
            with open(os.path.join(folder, "result0")) as f:
                row["result"] = json.load(f)
        if args.logs:
            os.makedirs(args.logs, exist_ok=True)
            for r, log in enumerate(logs):
                with open(log, errors="replace") as source, \
                        open(os.path.join(args.logs, f"{name}.{r}.log"), "w") as target:
                    target.write(source.read())
    row["seconds"] = round(time.monotonic() - begin, 1)
    return row


def compare(row, reference, ranks):
    """Losses against those of the reference run: float32, so nearly alike and not quite."""
    old = reference.get(row["check"])
    if row["verdict"] != "ok" or row["result"] is None:
        return
    losses = row["result"]
    row["detail"] = f"loss {losses[0]:.6f} to {losses[-1]:.6f}"
    if old is None:
        return
    if old["ranks"] != ranks or len(old["losses"]) != len(losses):
        row["detail"] += "; the reference is of other ranks or steps"
        return
    far = max(abs(a - b) / max(abs(b), 1e-9) for a, b in zip(losses, old["losses"]))
    row["detail"] += f"; furthest from the reference: {far:.1e} of it"
    if far > 1e-3:
        row["verdict"] = "DIFFERS"


def count_gpus():
    """Asked of another process: this one must stay without CUDA."""
    done = subprocess.run([sys.executable, "-c", "import torch; print(torch.cuda.device_count())"],
                          stdout=subprocess.PIPE, text=True, timeout=120)
    return int(done.stdout) if done.returncode == 0 else -1


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", default="all", help="a list of checks [all]")
    parser.add_argument("--nproc", type=int, default=0, help="processes [one for each GPU]")
    parser.add_argument("--rounds", type=int, default=10, help="rounds of each check [10]")
    parser.add_argument("--steps", type=int, default=20, help="steps of training [20]")
    parser.add_argument("--limit", type=float, default=90, help="seconds that a check may take [90]")
    parser.add_argument("--reference", help="file of losses, written or compared")
    parser.add_argument("--logs", help="folder for what the ranks print")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--json", action="store_true", help="a JSON line for each check on stdout; "
                        "the table on stderr")
    parser.add_argument("--list", action="store_true", help="names the checks and ends")
    for hidden in ("--play", "--folder", "--store"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.play:
        return play(args)
    if args.list:
        print("\n".join(CHECKS))
        return 0
    names = list(CHECKS) if args.check == "all" else args.check.split(",")
    for name in names:
        if name not in CHECKS:
            parser.error(f"--check {name} is unknown; see --list")
    ranks = args.nproc or (2 if args.device == "cpu" else count_gpus())
    if ranks < 1:
        print("torch_behind: " + ("torch cannot be imported" if ranks < 0 else "torch sees no GPU"),
              file=sys.stderr)
        return 3
    reference = {}
    if args.reference and os.path.exists(args.reference):
        with open(args.reference) as f:
            reference = json.load(f)
    out = sys.stderr if args.json else sys.stdout
    print(f"{'check':20} {'verdict':8} {'seconds':>7}", file=out)
    rows = []
    for name in names:
        row = run_check(name, args, ranks)
        compare(row, reference, ranks)
        rows.append(row)
        print(f"{row['check']:20} {row['verdict']:8} {row['seconds']:7.1f}  {row['detail']}",
              file=out, flush=True)
        if args.json:
            print(json.dumps(row), flush=True)
    if args.reference and not reference:
        losses = {r["check"]: {"ranks": ranks, "losses": r["result"]}
                  for r in rows if r["verdict"] == "ok" and r["result"] is not None}
        with open(args.reference, "w") as f:
            json.dump(losses, f, indent=1)
    bad = sum(r["verdict"] != "ok" for r in rows)
    print(f"# {len(rows) - bad} ok, {bad} not", file=out)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
