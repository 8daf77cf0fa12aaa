"""Faults over adapters like each provider's (like= of TWINPATH_SOFT_HCAS): what a program may post in
error, how it learns of it, names and addresses are others there.  Adapters of all kinds at once."""
import concurrent.futures
import subprocess

from harness import Peer, case, connected, environment, exchange, expect, moved_data, net_perf, warnings

KINDS = {"mlx5": "mlx5_", "mlx5-ib": "mlx5_", "bnxt_re": "bnxt_re", "irdma": "irdma", "ionic": "ionic_",
         "mana": "mana_", "erdma": "erdma_", "hns": "hns_", "rxe": "rxe"}


def on_each(args, body, kinds=tuple(KINDS)):
    """`body` with each kind's name and settings; what is wrong on any of them."""
    expect(args.likes.split(",") == list(KINDS), f"kinds of adapters: {args.likes}; here: {','.join(KINDS)}")

    def one(like):
        try:
            body(like, {"TWINPATH_SOFT_HCAS": f"2,like={like}"})
        except Exception as why:
            return f"{like}: {type(why).__name__}: {why}"[-1500:]
        return ""

    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        wrong = [text for text in pool.map(one, kinds) if text]
    expect(not wrong, "\n".join(wrong))


@case
def on_every_kind_of_adapter_the_survivor_of_a_killed_peer_gets_an_error(args):
    def body(like, env):
        for victim in ("listener", "sender"):
            listener, sender = connected(args, **env)
            exchange(listener, sender)
            listener.say("transfer 1 30")
            expect(listener.hear() == "posted", "receive was not posted")
            dead, left = (listener, sender) if victim == "listener" else (sender, listener)
            dead.p.kill()
            if left is sender:
                sender.say("transfer 1 30")
            answer = left.hear(10)
            dead.end()
            text = left.end()
            expect(answer.startswith("error"), f"{victim}: {answer}\n{text}")
            expect(f"{KINDS[like]}0" in text, f"no adapter is named {KINDS[like]}0: {text}")
    on_each(args, body)


@case
def on_every_kind_of_adapter_a_send_that_fails_is_made_again_by_another_port(args):
    def body(like, env):
        listener, sender = connected(args, TWINPATH_SOFT_FAULTS="fail_send=4", **env)
        for fill in range(1, 6):
            exchange(listener, sender, fill)
        sender.say("close")
        listener.say("close")
        expect((sender.hear(), listener.hear()) == ("ok closed", "ok closed"), "close")
        text = sender.end() + listener.end()
        expect(f"goes on over {KINDS[like]}1 " in warnings(text), f"no port stands in: {text}")
    on_each(args, body)


@case
def on_every_kind_of_adapter_the_good_gid_indices_are_named(args):
    def body(like, env):
        peer = Peer(args, "listen", NCCL_IB_GID_INDEX="999", **env)
        answer = peer.hear()
        text = peer.end()
        if like == "mlx5-ib":  # the setting is one of RoCE
            expect(len(answer) == 256, f"{answer}\n{text}")
            return
        expect(answer.startswith("error 4"), f"{answer}\n{text}")
        used = "0-3" if like in ("mlx5", "bnxt_re", "hns") else "0-1"
        for part in (f"{KINDS[like]}0:1", f"indices in use: {used}"):
            expect(part in warnings(text), f"the warning lacks {part!r}: {text}")
    on_each(args, body)


@case
def net_perf_and_coll_perf_find_right_data_on_adapters_unlike_ours(args):
    def body(like, env):
        moved_data(net_perf(args, "--test", "bw", "--sizes", "8,64k,1m", **env))
        if not args.coll_perf:
            return
        done = subprocess.run([args.coll_perf, "--plugin", args.plugin, "--cpu", "4", "-b", "8", "-e", "256k", "-f",
                               "32", "-n", "5"], env=environment(TWINPATH_SOFT_JOB=f"coll-{like}", **env), text=True,
                              stdin=subprocess.DEVNULL, capture_output=True, timeout=60)
        expect(done.returncode == 0 and "# Out of bounds values : 0 OK" in done.stdout, done.stderr + done.stdout)
    on_each(args, body, ("bnxt_re", "mana", "ionic", "mlx5-xdr"))
