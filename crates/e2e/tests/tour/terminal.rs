//! `tenure top` on a real terminal, the way a user has it before their eyes: that it fits, follows keys and the window's
//! size, says when nobody answers, and leaves the terminal as it found it however it ends.

use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::json;
use tenure_e2e::{Node, alongside, skipped_without, tenure_binary};

/// How long something may take to appear. A loaded machine with two cores is slow.
const PATIENCE: Duration = Duration::from_secs(60);

/// A terminal with a shell in it. It is gone when dropped.
struct Terminal {
    name: String,
}

impl Terminal {
    fn open(name: &str, width: u32, height: u32, endpoint: &str) -> Terminal {
        let terminal = Terminal { name: format!("tenure-{name}-{}", std::process::id()) };
        let folder = tenure_binary().parent().expect("a binary lies in a folder").display().to_string();
        let path = format!("PATH={folder}:{}", std::env::var("PATH").unwrap_or_default());
        let endpoints = format!("TENURE_ENDPOINTS={endpoint}");
        let (width, height) = (width.to_string(), height.to_string());
        let size = ["-x", &width, "-y", &height];
        let shell = ["env", &path, &endpoints, "PS1=ready$ ", "ENV=", "LC_ALL=C.UTF-8", "sh"];
        terminal.tmux(&[&["-f", "/dev/null", "new-session", "-d"][..], &size, &shell].concat());
        terminal.until("the shell is ready", |screen| screen.contains("ready$"));
        terminal
    }

    #[track_caller]
    fn tmux(&self, arguments: &[&str]) -> String {
        let output = Command::new("tmux").args(["-u", "-L", &self.name]).args(arguments).output();
        let output = output.expect("tmux can be started");
        assert!(output.status.success(), "tmux {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    fn screen(&self) -> String {
        self.tmux(&["capture-pane", "-p"])
    }

    fn press(&self, keys: &[&str]) {
        self.tmux(&[&["send-keys"][..], keys].concat());
    }

    fn resize(&self, width: u32, height: u32) {
        self.tmux(&["resize-window", "-x", &width.to_string(), "-y", &height.to_string()]);
    }

    #[track_caller]
    fn until(&self, what: &str, mut shown: impl FnMut(&str) -> bool) {
        let started = Instant::now();
        loop {
            let screen = self.screen();
            if shown(&screen) {
                return;
            }
            assert!(started.elapsed() < PATIENCE, "not seen: {what}; the screen shows\n{screen}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// The shell has its terminal back: its prompt, what is typed is shown, lines are edited, and nothing of the screen
    /// is left.
    #[track_caller]
    fn is_clean(&self) {
        self.until("the prompt is back", |screen| screen.trim_end().ends_with("ready$"));
        self.press(&["stty -a; echo over", "Enter"]);
        self.until("the terminal tells its settings", |screen| screen.contains("over\nready$"));
        let screen = self.screen();
        for setting in [" icanon", " echo "] {
            assert!(screen.contains(setting), "not{setting} any more:\n{screen}");
        }
        assert!(!screen.contains("RESOURCE"), "it left its screen behind:\n{screen}");
        assert_eq!(self.tmux(&["display-message", "-p", "#{cursor_flag}"]).trim(), "1", "no cursor");
        self.press(&["clear", "Enter"]);
        self.until("the screen is empty", |screen| screen.trim() == "ready$");
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // It may be gone already.
        let _ = Command::new("tmux").args(["-L", &self.name, "kill-server"]).output();
    }
}

#[test]
fn top_fits_follows_keys_and_leaves_the_terminal_clean() {
    if skipped_without("tmux", "top_fits_follows_keys_and_leaves_the_terminal_clean") {
        return;
    }
    let _turn = alongside();
    let mut node = Node::start("top");
    let mut http = node.http();
    let names: Vec<String> = (0..40).map(|shard| format!("ingest/shard-{shard:02}")).collect();
    let body = json!({"resources": names, "holder": "ingest-7", "ttl_ms": 3_600_000});
    http.post("/v1/leases:acquire", &body).expect(200);
    let fences = json!(["pg:ledger", "s3:reports"]);
    let body = json!({"holder": "node-a", "ttl_ms": 3_600_000, "fences": fences});
    let lease = http.post("/v1/leases/settlement/cron:acquire", &body).expect(200);
    let armed = json!({"fence": "pg:ledger", "token": lease["token"]});
    http.post("/v1/fences/settlement/cron:arm", &armed).expect(200);

    let terminal = Terminal::open("top", 80, 24, &node.endpoint());
    terminal.press(&["tenure top --sort token", "Enter"]);
    terminal.until("everything is shown", |screen| {
        ["leads in term", "grants", "NODE", "RESOURCE", "FENCES", "settlement/cron", "1/2", "q ends it"]
            .iter()
            .all(|word| screen.contains(word))
    });
    let screen = terminal.screen();
    assert!(screen.lines().all(|line| line.chars().count() <= 80), "{screen}");
    assert!(!screen.contains(" GEN"), "too much for 80 columns:\n{screen}");
    assert!(screen.trim_end().lines().last().expect("a line").contains("1-"), "the foot is last:\n{screen}");

    terminal.press(&["s"]);
    terminal.until("it is sorted by name", |screen| screen.contains("by name"));
    terminal.press(&["Down", "Down", "Down"]);
    terminal.until("it is scrolled", |screen| screen.contains("4-") && !screen.contains("shard-02"));
    terminal.resize(160, 50);
    terminal.until("a larger window is filled", |screen| {
        screen.contains(" GEN") && screen.contains("settlement/cron") && screen.lines().count() > 40
    });
    terminal.resize(80, 24);
    terminal.press(&["q"]);
    terminal.is_clean();

    terminal.press(&["tenure top", "Enter"]);
    terminal.until("it is shown", |screen| screen.contains("RESOURCE"));
    terminal.press(&["C-c"]);
    terminal.is_clean();

    // Nobody answers any more: what was known stays, with how old it is, and a key still ends it at once.
    terminal.press(&["tenure top", "Enter"]);
    terminal.until("it is shown", |screen| screen.contains("RESOURCE"));
    node.kill();
    terminal.until("it says so", |screen| screen.contains("no answer for") && screen.contains("RESOURCE"));
    node.restart();
    terminal.until("it goes on", |screen| !screen.contains("no answer for") && screen.contains("RESOURCE"));
    node.kill();
    terminal.until("it says so again", |screen| screen.contains("no answer for"));
    terminal.press(&["q"]);
    terminal.is_clean();
}
