//! Real processes, real sockets, real kills: the harness of the end-to-end tests.
//!
//! It starts the binary we ship, speaks to it as a stranger would, breaks it on purpose and waits for
//! conditions with a deadline. It knows no rule of the protocol: what must hold is said by the tests in
//! `tests/`, one file per fear. Heavy tests have a light variant ([`Scale`]); a test that needs a program
//! which is not installed says so ([`skipped_without`]) and is counted.

mod browser;
mod cluster;
mod dice;
mod holder;
mod http;
mod lan;
mod node;
mod part;
mod plain;
mod program;
mod proxy;
mod renewer;
mod scale;
mod scratch;
mod secured;
mod sse;
mod trace;
mod wait;
mod workers;

pub use browser::{BROWSER, Browser, Screen};
pub use cluster::Cluster;
pub use dice::Dice;
pub use holder::{SOON, block_on, client, renewed};
pub use http::{CallFailed, Http, Reply, path_segment};
pub use lan::{Lan, Side};
pub use node::{Node, NodeOptions, free_address};
pub use part::{Part, given, listen, monotonic_nanos, playing, say};
pub use plain::{Acquired, By, GivenBack, PlainCaller};
pub use program::{find, run_tenure, skipped_without, tenure_binary};
pub use proxy::Proxy;
pub use renewer::{Renewer, RenewerReport};
pub use scale::{Scale, Turn, alone, alongside, scale};
pub use scratch::Scratch;
pub use secured::{RootFile, Tls};
pub use sse::{EventStream, ServerSentEvent};
pub use trace::{Stall, SyncObserver};
pub use wait::{percentile, until, until_some};
pub use workers::{Promised, Workers, assert_kept};
