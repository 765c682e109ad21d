//! A running node: its parts put together, started and stopped in order.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tenure_clock::{Clock, SystemClock};
use tenure_core::{FormatVersion, Moment, Settings};
use tenure_replica::{
    Agreed, Disk, Entropy, Execution, Network, RaftTiming, RealDisk, Replica, StartError, Stopwatch,
    TcpNetwork, Versions,
};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tracing::{info, warn};

use crate::audit::Audit;
use crate::auth::{Gate, Issuers, Shares};
use crate::config::Config;
use crate::descriptors;
use crate::event_files::EventFiles;
use crate::event_hub::EventHub;
use crate::forward::Forwarder;
use crate::front::{Callers, Front, FrontLimits};
use crate::leader_loop::leader_loop;
use crate::listen::{Accept, CONNECTIONS_MAX, bind};
use crate::node::{Node, PastEvents};
use crate::probe::Prober;
use crate::replicated::Replicated;
use crate::secure::Reloader;
use crate::signing::Signer;

/// How long requests under way may take to end once the node is asked to stop.
const DRAIN_MAX: Duration = Duration::from_secs(5);

/// Heartbeats of a node that has nobody to send them to. It elects itself at its start without waiting, so slow
/// ones cost nothing, and quick ones would only wake an idle node up.
const ALONE: RaftTiming = RaftTiming {
    heartbeat: Duration::from_millis(500),
    election_min: Duration::from_millis(1_500),
    election_max: Duration::from_millis(3_000),
};

/// What a node needs of the world around it; simulation supplies its own.
#[derive(Clone)]
pub struct World {
    /// What time it is.
    pub clock: Arc<dyn Clock>,
    /// Where everything durable goes.
    pub disk: Arc<dyn Disk>,
    /// How nodes reach each other, and the leader its own client port.
    pub network: Arc<dyn Network>,
    /// Random bits.
    pub entropy: Entropy,
    /// Where blocking work runs.
    pub execution: Execution,
}

impl World {
    /// The real one: this machine's clocks, disk and network.
    pub fn real(config: &Config) -> Result<World, StartError> {
        let directory = config.data_dir.display();
        let disk = RealDisk::open(&config.data_dir)
            .map_err(|error| StartError::Io(format!("cannot open the data directory {directory}"), error))?;
        Ok(World {
            clock: Arc::new(SystemClock),
            disk: Arc::new(disk),
            network: Arc::new(TcpNetwork),
            entropy: Entropy::default(),
            execution: Execution::Threads,
        })
    }
}

/// A running node.
pub struct Server {
    node: Node,
    address: SocketAddr,
    stop: watch::Sender<bool>,
    front: JoinHandle<()>,
    leader_loop: JoinHandle<()>,
    members: JoinHandle<()>,
    concealing: JoinHandle<()>,
    upgrade: Option<JoinHandle<()>>,
    event_files: JoinHandle<()>,
    #[cfg(test)]
    callers: Callers,
    issuers: JoinHandle<()>,
    audit: (Arc<Audit>, JoinHandle<()>),
    certificates: Option<JoinHandle<()>>,
    reloader: Reloader,
    execution: Execution,
}

impl Server {
    /// Starts a node on this machine.
    ///
    /// Boxed, here and below, so that the whole server is compiled in this crate and not again in each that starts one.
    pub fn start(config: Config) -> BoxFuture<'static, Result<Server, StartError>> {
        let started = async move {
            let world = World::real(&config)?;
            let (accept, address) = bind(config.listen).await.map_err(|error| {
                StartError::Io(
                    format!("cannot listen at {} (is another node running there?)", config.listen),
                    error,
                )
            })?;
            let wanted = config.connections_max;
            let tls = config.client_tls.is_some();
            let fit = move |peers| descriptors::fit(wanted, peers, tls);
            Server::assemble(config, world, accept, address, fit).await
        };
        started.boxed()
    }

    /// Starts a node in a given world, with a client port that is already open at `address`.
    pub async fn start_in(
        config: Config,
        world: World,
        accept: impl Accept,
        address: SocketAddr,
    ) -> Result<Server, StartError> {
        let connections_max = config.connections_max.unwrap_or(CONNECTIONS_MAX);
        Server::assemble(config, world, accept, address, move |_| connections_max).await
    }

    /// `connections_max` says how many client connections may be open at once, given whether there is a port
    /// for peers.
    async fn assemble(
        config: Config,
        world: World,
        accept: impl Accept,
        address: SocketAddr,
        connections_max: impl FnOnce(bool) -> usize,
    ) -> Result<Server, StartError> {
        let issuers = Issuers::load(config.jwt_issuers.clone())
            .map_err(|why| StartError::Io("the issuers of JWTs".into(), io::Error::other(why)))?;
        let issuers = Arc::new(issuers);
        let event_hub = EventHub::new();
        let (disk, options) = (world.disk.clone(), config.event_files);
        let event_files = world.execution.blocking(move || EventFiles::open(disk, options)).await;
        let agreed = Agreed::default();
        let versions = Versions {
            oldest: FormatVersion::OLDEST.get().into(),
            newest: config.format_newest.get().into(),
        };
        let origin = world.clock.now();
        let clock = world.clock.clone();
        let founding =
            Settings { cluster: world.entropy.draw().to_be_bytes(), limits: config.limits.clone() };
        let replica = Replica::start(
            tenure_replica::Config {
                node: config.node,
                peers: config.peers.clone(),
                beyond_this_machine: config.peers_beyond_this_machine,
                security: config.peer_security.clone(),
                key: config.node_key,
                timing: config.timing,
                timing_alone: ALONE,
                log: config.log,
                snapshot: config.snapshot,
                execution: world.execution,
                low_latency: config.low_latency,
                versions,
                agreed: agreed.clone(),
                entropy: world.entropy.clone(),
                stopwatch: Stopwatch::from_source(move || Moment::longest_since(clock.now(), origin)),
            },
            world.disk.clone(),
            world.network.clone(),
            Replicated::new(
                event_hub.clone(),
                event_files.clone(),
                world.clock.clone(),
                agreed.clone(),
                config.format_newest,
            ),
        )
        .await?;
        // Only now: a data directory that is refused is not touched.
        let audit = match config.audit.clone() {
            None => Audit::default(),
            Some(options) => Audit::open(options, config.node, world.clock.clone())
                .map_err(|error| StartError::Io("the audit log cannot be written".into(), error))?,
        };
        let callers = Callers {
            gate: Arc::new(Gate::new(issuers.clone())),
            shares: Arc::new(Shares::new(config.identity_limits)),
            audit: Arc::new(audit),
        };
        let connections_max = connections_max(!replica.is_alone());
        let tls = config.client_tls.as_ref().map(|client| client.tls.clone());
        let own_port = probe_address(address).to_string();
        let prober = Prober::new(world.network, tls.clone(), own_port, world.entropy.clone());
        let (leader_loop, queues, numbers) = leader_loop(
            replica.clone(),
            world.clock.clone(),
            prober,
            config.proposer.clone(),
            (founding, config.enforced),
        );
        let client_address = config.advertise.clone().unwrap_or_else(|| address.to_string());
        let signer = Signer::new(config.node, world.disk, world.entropy.clone(), world.execution);
        let forwarder = Forwarder::new(replica, world.clock.clone(), agreed, &config.proposer);
        let past = PastEvents { files: event_files.clone(), execution: world.execution };
        let events = (event_hub, past);
        let node = Node::new(forwarder, queues, events, world.entropy, numbers, signer, client_address);
        let event_files = tokio::spawn(event_files.keep(world.execution));
        let leader_loop = tokio::spawn(leader_loop.work());
        let members = tokio::spawn(node.clone().keep_members());
        let concealing = tokio::spawn(node.clone().keep_concealed());
        let upgrade = config
            .auto_upgrade
            .map(|after| tokio::spawn(node.clone().keep_upgraded(after, world.clock.clone())));
        let issuers = tokio::spawn(issuers.keep());
        let audit = (callers.audit.clone(), tokio::spawn(callers.audit.clone().keep()));
        let (stop, stopping) = watch::channel(false);
        let front = Front::new(
            node.clone(),
            world.clock,
            address,
            (config.advertise.as_deref(), &config.names),
            FrontLimits::default(),
            callers.clone(),
            stopping,
        );
        let traffic = front.traffic().clone();
        traffic.set_insecure(config.insecure);
        if config.insecure {
            warn!("other machines reach a port of this node without TLS: whoever does may do anything");
        }
        let reloader = Reloader::default();
        let certificates = tls.map(|tls| tokio::spawn(reloader.clone().keep(tls, traffic, world.execution)));
        let front = tokio::spawn(front.serve(accept, config.client_tls, connections_max, DRAIN_MAX));
        info!(node = config.node, %address, "serving clients");
        let execution = world.execution;
        Ok(Server {
            node,
            address,
            stop,
            front,
            leader_loop,
            members,
            concealing,
            upgrade,
            event_files,
            #[cfg(test)]
            callers,
            issuers,
            audit,
            certificates,
            reloader,
            execution,
        })
    }

    /// The node.
    pub fn node(&self) -> &Node {
        &self.node
    }

    /// How its front ends find out who calls.
    #[cfg(test)]
    pub(crate) fn callers(&self) -> &Callers {
        &self.callers
    }

    /// Where clients connect.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Has it look for another certificate to present.
    pub fn reloader(&self) -> Reloader {
        self.reloader.clone()
    }

    /// Whether this node has no port for peers.
    pub fn is_alone(&self) -> bool {
        self.node.replica().is_alone()
    }

    /// Serves until asked to stop, then drains; or fails with the node, loudly.
    pub async fn run_until(
        self,
        stop_requested: impl Future<Output = ()>,
    ) -> Result<(), tenure_replica::FatalError> {
        let replica = self.node.replica().clone();
        tokio::select! {
            biased;
            failure = replica.failed().boxed() => return Err(failure),
            () = stop_requested => {}
        }
        info!("stopping: no new connections, requests under way may end");
        self.stop().await;
        Ok(())
    }

    /// Drains and stops.
    pub fn stop(self) -> BoxFuture<'static, ()> {
        self.drain_and_stop().boxed()
    }

    async fn drain_and_stop(self) {
        let replica = self.node.replica().clone();
        if replica.leadership().borrow().leader_term().is_some() && replica.status().voters.len() > 1 {
            // Handing leadership on first costs the cluster milliseconds; dying as leader costs an election.
            if let Err(error) = replica.transfer_leadership(None).await {
                warn!(%error, "could not hand leadership on");
            }
        }
        self.stop.send_replace(true);
        let _ = self.front.await;
        self.leader_loop.abort();
        self.issuers.abort();
        self.audit.1.abort();
        self.audit.0.finish().await;
        self.members.abort();
        self.concealing.abort();
        if let Some(certificates) = self.certificates {
            certificates.abort();
        }
        if let Some(upgrade) = self.upgrade {
            upgrade.abort();
        }
        replica.shutdown().await;
        self.event_files.abort();
        let files = self.node.past_events().files.clone();
        self.execution.blocking(move || files.write(true)).await;
        info!("stopped");
    }
}

/// Where a node reaches its own client port: a wildcard address is reached at loopback.
fn probe_address(address: SocketAddr) -> SocketAddr {
    let mut address = address;
    if address.ip().is_unspecified() {
        let loopback: std::net::IpAddr = match address {
            SocketAddr::V4(_) => std::net::Ipv4Addr::LOCALHOST.into(),
            SocketAddr::V6(_) => std::net::Ipv6Addr::LOCALHOST.into(),
        };
        address.set_ip(loopback);
    }
    address
}
