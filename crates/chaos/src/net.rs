//! A network of namespaces: one for each process, one for the switch between them. Nothing of the host's own network is touched.
//!
//! Faults are nftables rules in the namespace that does not hear: dropping what comes *from* an address is a one-way cut.

use std::process::Command;

/// The namespaces of one run; removed when dropped.
pub struct Net {
    prefix: String,
    hosts: Vec<u32>,
}

/// The address of a host.
pub fn ip(host: u32) -> String {
    format!("10.77.0.{host}")
}

/// The switch's own address, from where the nodes are asked how they are.
const SWITCH: u32 = 250;

impl Net {
    /// A switch without hosts.
    pub fn new() -> Result<Net, String> {
        let net = Net { prefix: format!("tchaos{}", std::process::id()), hosts: Vec::new() };
        let switch = net.switch();
        run("ip", &["netns", "add", &switch])?;
        run("ip", &["-n", &switch, "link", "add", "br0", "type", "bridge"])?;
        run("ip", &["-n", &switch, "addr", "add", &format!("{}/24", ip(SWITCH)), "dev", "br0"])?;
        run("ip", &["-n", &switch, "link", "set", "br0", "up"])?;
        run("ip", &["-n", &switch, "link", "set", "lo", "up"])?;
        Ok(net)
    }

    /// The namespace of the switch.
    pub fn switch(&self) -> String {
        format!("{}-s", self.prefix)
    }

    /// The namespace of a host.
    pub fn namespace(&self, host: u32) -> String {
        format!("{}-{host}", self.prefix)
    }

    /// Adds a host.
    pub fn add(&mut self, host: u32) -> Result<(), String> {
        self.hosts.push(host);
        let (namespace, switch) = (self.namespace(host), self.switch());
        let plug = format!("p{host}");
        run("ip", &["netns", "add", &namespace])?;
        run(
            "ip",
            &[
                "-n", &namespace, "link", "add", "eth0", "type", "veth", "peer", "name", &plug, "netns",
                &switch,
            ],
        )?;
        run("ip", &["-n", &switch, "link", "set", &plug, "master", "br0", "up"])?;
        run("ip", &["-n", &namespace, "addr", "add", &format!("{}/24", ip(host)), "dev", "eth0"])?;
        run("ip", &["-n", &namespace, "link", "set", "eth0", "up"])?;
        run("ip", &["-n", &namespace, "link", "set", "lo", "up"])?;
        self.nft(host, "add table ip chaos")?;
        self.nft(host, "add chain ip chaos heard { type filter hook input priority 0; }")
    }

    /// From now on `host` hears nothing from these.
    pub fn cut(&self, host: u32, from: &[u32]) -> Result<(), String> {
        for other in from {
            self.nft(host, &format!("add rule ip chaos heard ip saddr {} drop", ip(*other)))?;
        }
        Ok(())
    }

    /// From now on `host` loses so many of a hundred packets that come from anywhere.
    pub fn lose(&self, host: u32, percent: u32) -> Result<(), String> {
        self.nft(host, &format!("add rule ip chaos heard numgen random mod 100 < {percent} drop"))
    }

    /// Ends everything that is wrong with what `host` hears.
    pub fn heal(&self, host: u32) -> Result<(), String> {
        self.nft(host, "flush chain ip chaos heard")
    }

    fn nft(&self, host: u32, rule: &str) -> Result<(), String> {
        run("ip", &["netns", "exec", &self.namespace(host), "nft", rule])
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        for namespace in self.hosts.iter().map(|host| self.namespace(*host)).chain([self.switch()]) {
            // What is left behind is a namespace without processes; there is nobody to tell.
            let _ = run("ip", &["netns", "del", &namespace]);
        }
    }
}

fn run(program: &str, arguments: &[&str]) -> Result<(), String> {
    let told = |why: String| format!("{program} {}: {why}", arguments.join(" "));
    let output = Command::new(program).args(arguments).output().map_err(|error| told(error.to_string()))?;
    if output.status.success() {
        return Ok(());
    }
    Err(told(String::from_utf8_lossy(&output.stderr).trim().to_owned()))
}
