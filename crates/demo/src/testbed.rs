//! The nodes of a demo: this binary on free ports, with data in a temporary folder. Everything is removed
//! when the testbed is dropped.

use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::http::Http;
use crate::{DemoError, cleanup};

/// How long nodes may take until they serve. Generous: a busy machine starts slowly.
const READY_WITHIN: Duration = Duration::from_secs(30);

/// A folder that is removed when it is dropped.
pub struct Folder(PathBuf);

impl Folder {
    /// A fresh one.
    pub fn new() -> Result<Folder, DemoError> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("tenure-demo-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path)?;
        cleanup::made(&path);
        Ok(Folder(path))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // Whatever cannot be removed is in a folder for temporary things.
        let _ = std::fs::remove_dir_all(&self.0);
        cleanup::removed(&self.0);
    }
}

/// A process of ours that is killed when it is dropped.
pub struct Process(Child);

impl Process {
    /// Starts it.
    pub fn start(command: &mut Command) -> Result<Process, DemoError> {
        let child = command.spawn().map_err(|error| {
            DemoError::new(format!("{} cannot be started: {error}", command.get_program().to_string_lossy()))
        })?;
        cleanup::started(child.id());
        Ok(Process(child))
    }

    /// The process itself.
    pub fn child(&mut self) -> &mut Child {
        &mut self.0
    }

    /// `kill -9`, and waits until it is gone.
    pub fn kill(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
        cleanup::ended(self.0.id());
    }
}

/// Nodes that serve.
pub struct Testbed {
    // Dropped in this order: first the nodes end, then their data is removed.
    nodes: Vec<Process>,
    addresses: Vec<SocketAddr>,
    folder: Folder,
}

impl Testbed {
    /// Starts that many nodes and waits until they serve.
    pub fn open(many: usize) -> Result<Testbed, DemoError> {
        let mut addresses = free_addresses(2 * many)?;
        let peers: Vec<String> = addresses
            .split_off(many)
            .iter()
            .enumerate()
            .map(|(index, address)| format!("{}={address}", index + 1))
            .collect();
        let mut testbed = Testbed { nodes: Vec::new(), addresses, folder: Folder::new()? };
        for index in 0..many {
            let mut command = Command::new(std::env::current_exe()?);
            command.args(["serve", "--log-level", "warn", "--listen", &testbed.addresses[index].to_string()]);
            command.arg("--data-dir").arg(testbed.folder.path().join(format!("node-{}", index + 1)));
            if many > 1 {
                command.args(["--node", &(index + 1).to_string(), "--peers", &peers.join(",")]);
            }
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            testbed.nodes.push(Process::start(&mut command)?);
        }
        for address in &testbed.addresses {
            wait_ready(*address)?;
        }
        Ok(testbed)
    }

    /// Where clients reach them.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// The same, as a client wants it.
    pub fn endpoints(&self) -> String {
        self.addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
    }

    /// A caller of the first node.
    pub fn http(&self) -> Http {
        Http::new(self.addresses[0])
    }

    /// Lets the cluster issue tokens without a holder until the next grant has this one.
    pub fn next_token(&self, token: u64) -> Result<(), DemoError> {
        let mut http = self.http();
        let resource = serde_json::json!({"holder": "testbed", "ttl_ms": 5_000});
        let taken = http.ask("POST", "/v1/leases/demo/spare:acquire", Some(&resource))?;
        let session = serde_json::json!({"session": taken["session"]});
        http.ask("POST", "/v1/leases/demo/spare:release", Some(&session))?;
        for _ in 2..token {
            http.ask("POST", "/v1/leases/demo/spare:barrier", None)?;
        }
        Ok(())
    }
}

fn wait_ready(address: SocketAddr) -> Result<(), DemoError> {
    let started = Instant::now();
    loop {
        if Http::new(address).call("GET", "/readyz", None).is_ok_and(|(status, _)| status == 200) {
            return Ok(());
        }
        if started.elapsed() > READY_WITHIN {
            return Err(DemoError::new(format!(
                "the node at {address} did not serve within {READY_WITHIN:?}; try again on a quieter machine"
            )));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Addresses that nobody uses at the moment.
pub fn free_addresses(many: usize) -> Result<Vec<SocketAddr>, DemoError> {
    // All are taken before any is given back, so that none is given twice.
    let taken: Vec<TcpListener> =
        (0..many).map(|_| TcpListener::bind("127.0.0.1:0")).collect::<Result<_, _>>()?;
    Ok(taken.iter().map(TcpListener::local_addr).collect::<Result<_, _>>()?)
}
