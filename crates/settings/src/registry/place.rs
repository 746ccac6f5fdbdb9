//! Who is in the job: a rank's place, the rendezvous, and how long to wait for the others.

use crate::variable::Kind::{Count, Path, Seconds, Switch, Text};
use crate::variable::Status::{Accepted, Explained, Honoured};
use crate::variable::variables;

const OTHER_RENDEZVOUS: &str = "ranks meet at RONDE_RENDEZVOUS; start them with `ronde run` or `horovodrun`, or serve them \
                                with `ronde rendezvous`";

variables! {
    /// This rank, counted from 0.
    RANK = "HOROVOD_RANK": Count, Some("0"), Honoured;

    /// How many ranks the job has. With none of the variables of this group set, a process is a job of one rank.
    SIZE = "HOROVOD_SIZE": Count, Some("1"), Honoured;

    /// This rank among those of its host, counted from 0. Scripts choose their GPU by it.
    LOCAL_RANK = "HOROVOD_LOCAL_RANK": Count, Some("0"), Honoured;

    /// How many ranks this host has.
    LOCAL_SIZE = "HOROVOD_LOCAL_SIZE": Count, Some("1"), Honoured;

    /// This host among those that have a rank with the same local rank. Without it, every rank is taken to be alone on its
    /// host.
    CROSS_RANK = "HOROVOD_CROSS_RANK": Count, None, Honoured;

    /// How many hosts have a rank with this local rank.
    CROSS_SIZE = "HOROVOD_CROSS_SIZE": Count, None, Honoured;

    /// What the launcher calls this host: in messages, and in the `RONDE_ROUTES` of other hosts. Which ranks share memory does
    /// not depend on it; they find that out by trying.
    HOSTNAME = "HOROVOD_HOSTNAME": Text, None, Honoured;

    /// Where the rendezvous listens: `host:port`, an IPv6 address in brackets.
    RENDEZVOUS = "RONDE_RENDEZVOUS": Text, None, Honoured;

    /// The port at which rank 0 serves a job that another launcher started. Without it, the one after `MASTER_PORT`, or one
    /// between 20000 and 31999 that depends on the job; where ranks find each other through a file, it may be any.
    RENDEZVOUS_PORT = "RONDE_RENDEZVOUS_PORT": Count, None, Honoured;

    /// Lets the hosts of a job that another launcher started meet without a secret, where they share neither
    /// `RONDE_SECRET_FILE` nor a home folder. Whoever can reach their ports can then take part. Rank 0 says so.
    INSECURE = "RONDE_INSECURE": Switch, Some("0"), Honoured;

    /// The file that holds the job's secret: 64 hexadecimal digits, readable by its owner only. The secret itself is never
    /// in a variable.
    SECRET_FILE = "RONDE_SECRET_FILE": Path, None, Honoured;

    /// How long `init()` waits for the other ranks. `ronde run --start-timeout` sets it.
    RONDE_START_TIMEOUT = "RONDE_START_TIMEOUT": Seconds, Some("600"), Honoured;

    /// What `ronde run` and `horovodrun` take for `--start-timeout` where that is not given. Horovod's default was 30
    /// seconds for starting the processes; ours covers everything up to the moment the last rank has called `init()`.
    START_TIMEOUT = "HOROVOD_START_TIMEOUT": Seconds, Some("600"), Honoured;

    /// Says that the number of ranks may change while the job runs. A launcher sets it.
    ELASTIC = "HOROVOD_ELASTIC": Switch, Some("0"), Honoured;

    /// How long an elastic launcher waits for enough slots after a change.
    ELASTIC_TIMEOUT = "HOROVOD_ELASTIC_TIMEOUT": Seconds, Some("600"),
        Accepted("the launcher of this version starts jobs of a fixed size");

    /// How long a rank that does not answer is waited for: while a connection to it is opened, and when its host has gone
    /// silent. A rank whose process ends is noticed at once, and a rank that is merely slow is never given up.
    GLOO_TIMEOUT_SECONDS = "HOROVOD_GLOO_TIMEOUT_SECONDS": Seconds, Some("30"), Honoured;

    /// The network interface for traffic between ranks, where `RONDE_DATA_ADDRESS` does not say more. By default the one from
    /// which a rank reaches the rendezvous.
    GLOO_IFACE = "HOROVOD_GLOO_IFACE": Text, None, Honoured;

    /// The IP address at which a rank listens for the others. With `0.0.0.0` or `::` it listens on all it has, and
    /// `RONDE_ROUTES` of the other hosts must say which one to dial.
    DATA_ADDRESS = "RONDE_DATA_ADDRESS": Text, None, Honoured;

    /// The ports at which ranks may listen, for firewalls that let only some pass: `20000-20999`, both included. Every rank
    /// of a host needs one.
    PORT_RANGE = "RONDE_PORT_RANGE": Text, None, Honoured;

    /// How this host's ranks reach those of other hosts, by the names in `HOROVOD_HOSTNAME`:
    /// `h2=10.0.0.2;h3=await;h4=via:203.0.113.7:9000`. Dial that address, wait to be dialled, or dial that door and say which
    /// rank is meant. The two hosts of a pair must agree about who dials. To ranks of a host that is not named, the higher
    /// rank dials the address at which the other listens.
    ROUTES = "RONDE_ROUTES": Text, None, Honoured;

    /// The abstract unix socket through which the launcher's agent on this host hands over connections that came in at its
    /// published port.
    DOORWAY = "RONDE_DOORWAY": Text, None, Honoured;

    /// Where Horovod's own rendezvous listened.
    GLOO_RENDEZVOUS_ADDR = "HOROVOD_GLOO_RENDEZVOUS_ADDR": Text, None, Explained(OTHER_RENDEZVOUS);

    /// The port of Horovod's own rendezvous.
    GLOO_RENDEZVOUS_PORT = "HOROVOD_GLOO_RENDEZVOUS_PORT": Count, None, Explained(OTHER_RENDEZVOUS);

    /// The key with which Horovod's services signed their messages.
    SECRET_KEY = "_HOROVOD_SECRET_KEY": Text, None,
        Accepted("the job's secret is in the file RONDE_SECRET_FILE, and connections prove it without sending it");
}
