//! Attacks at a client port that speaks TLS, and everything that must work over it.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::Duration;

use tenure_client::{Client, Endpoints};
use tenure_clock::{Clock, SystemClock};
use tenure_e2e::{Node, NodeOptions, RootFile, alone, block_on, run_tenure, tenure_binary, until};
use tenure_tls::{Issued, Protocol};

const SOON: Duration = Duration::from_secs(30);

/// A node with this root that serves nobody without TLS.
fn secured(name: &str, root: &RootFile, more: &[&str]) -> Node {
    let mut node = Node::prepare(name, NodeOptions::default());
    let path = root.path();
    node.set_extra(&[&["--root", path.as_str()][..], more].concat());
    node.spawn();
    until("the node serves over TLS", SOON, || {
        let answer = block_on(root.client(None).get(node.address(), "/readyz"));
        answer.is_ok_and(|answer| answer.starts_with("HTTP/1.1 200"))
    });
    node
}

/// Sends bytes without TLS: all that comes back.
fn plainly(node: &Node, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(node.address()).expect("the port is open");
    stream.set_read_timeout(Some(SOON)).expect("a limit");
    stream.write_all(bytes).expect("it is sent");
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

#[test]
fn plaintext_is_told_that_the_port_speaks_tls() {
    let root = RootFile::new("plaintext-root");
    let node = secured("plaintext", &root, &[]);
    let answer = plainly(&node, b"GET /v1/cluster HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 400 ") && answer.contains("this port speaks TLS"), "{answer}");
    let answer = plainly(&node, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0");
    assert_eq!(answer, "", "HTTP/2 without TLS is not served");
    assert_eq!(plainly(&node, &[0; 64]), "", "nor anything else");
}

#[test]
fn an_expired_certificate_is_refused() {
    let root = RootFile::new("expired-root");
    let node = secured("expired", &root, &[]);
    let operator = |ago| root.root().for_operator(RootFile::ago(ago)).expect("a certificate");
    let ask = |certificate| block_on(root.client(Some(certificate)).get(node.address(), "/readyz"));
    assert!(ask(operator(Duration::ZERO)).is_ok());
    let refused = ask(operator(Duration::from_secs(3_600)));
    assert!(refused.is_err(), "{refused:?}");
    assert!(block_on(root.client(None).get(node.address(), "/metrics")).is_ok_and(|page| {
        page.lines()
            .any(|line| line.starts_with("tenure_tls_handshakes_failed_total ") && !line.ends_with(" 0"))
    }));
}

#[test]
fn a_client_of_another_root_is_refused() {
    let (root, other) = (RootFile::new("ours-root"), RootFile::new("theirs-root"));
    let node = secured("other-client", &root, &[]);
    let foreign = other.root().for_operator(SystemClock.wall()).expect("a certificate");
    assert!(block_on(root.client(Some(foreign)).get(node.address(), "/readyz")).is_err());
}

#[test]
fn a_server_under_a_wrong_name_is_not_believed() {
    let root = RootFile::new("names-root");
    let node = secured("names", &root, &["--name", "db-1.example"]);
    let ask = |host| {
        block_on(root.client(None).exchange(node.address(), host, Protocol::Http1, b"GET / HTTP/1.0\r\n\r\n"))
    };
    for host in ["db-1.example", "localhost", "127.0.0.1"] {
        assert!(ask(host).is_ok(), "{host}");
    }
    for host in ["db-2.example", "10.9.9.9"] {
        assert!(ask(host).is_err(), "{host}");
    }
    let authority = root.authority();
    let named = |name| {
        run_tenure(&node.endpoint(), &["--ca", &authority, "--server-name", name, "cluster", "status"])
    };
    assert!(named("db-1.example").status.success());
    assert!(!named("db-2.example").status.success());
}

/// Somebody answers in the place of the node, with a certificate of a root of his own.
#[test]
fn a_man_in_the_middle_is_not_believed() {
    let (root, other) = (RootFile::new("mine-root"), RootFile::new("middle-root"));
    let node = secured("middle", &other, &[]);
    let asked = run_tenure(&node.endpoint(), &["--root", &root.path(), "acquire", "a", "--timeout", "2s"]);
    assert!(!asked.status.success(), "{asked:?}");
    let said = String::from_utf8_lossy(&asked.stderr).into_owned();
    assert!(said.contains("certificate"), "{said}");
    let held = run_tenure(&node.endpoint(), &["--root", &other.path(), "ls", "--json"]);
    assert_eq!(String::from_utf8_lossy(&held.stdout).trim(), "", "nothing was sent: {held:?}");
}

#[test]
fn a_key_that_others_can_read_is_refused() {
    let root = RootFile::new("readable-root");
    fs::set_permissions(root.path(), fs::Permissions::from_mode(0o644)).expect("its mode is set");
    let mut node = Node::prepare("readable", NodeOptions::default());
    node.set_extra(&["--root", &root.path()]);
    node.spawn();
    until("it says why it does not start", SOON, || !node.is_alive());
    assert!(node.log().contains(&format!("chmod 600 {}", root.path())), "{}", node.log());
    let asked = run_tenure("127.0.0.1:1", &["--root", &root.path(), "cluster", "status"]);
    assert!(String::from_utf8_lossy(&asked.stderr).contains("chmod 600"), "{asked:?}");
}

fn write_pair(root: &RootFile, issued: &Issued, certificate: bool, key: bool) {
    let pem = |label: &str, bytes: &[u8]| {
        use base64::Engine;
        let body = base64::engine::general_purpose::STANDARD.encode(bytes);
        format!("-----BEGIN {label}-----\n{body}\n-----END {label}-----\n")
    };
    if certificate {
        fs::write(root.file("cert.pem"), pem("CERTIFICATE", &issued.chain[0])).expect("it is written");
    }
    if key {
        fs::write(root.file("key.pem"), pem("PRIVATE KEY", issued.key.secret_der())).expect("it is written");
        fs::set_permissions(root.file("key.pem"), fs::Permissions::from_mode(0o600))
            .expect("its mode is set");
    }
}

#[test]
fn a_bad_reload_keeps_the_old_certificate() {
    let root = RootFile::new("reload-root");
    let issue = |name: &str| {
        let names = [name.to_owned(), "127.0.0.1".to_owned()];
        root.root().for_server(&names, SystemClock.wall()).expect("a certificate")
    };
    let (first, second) = (issue("first.example"), issue("second.example"));
    write_pair(&root, &first, true, true);
    let path = |name: &str| root.file(name).display().to_string();
    let node = secured("reload", &root, &["--tls-cert", &path("cert.pem"), "--tls-key", &path("key.pem")]);
    let presents = |name: &str| {
        let client = root.client(None);
        let asked = client.exchange(node.address(), name, Protocol::Http1, b"GET / HTTP/1.0\r\n\r\n");
        block_on(asked).is_ok()
    };
    let failures = || {
        let page = block_on(root.client(None).get(node.address(), "/metrics")).expect("the node answers");
        let value = page.lines().find_map(|line| line.strip_prefix("tenure_tls_reload_failures_total "));
        value.expect("a count").parse::<u64>().expect("a number")
    };
    assert!(presents("first.example") && !presents("second.example"));
    // The certificate alone: its key is that of the first.
    write_pair(&root, &second, true, false);
    node.hang_up();
    until("the failure is counted", SOON, || failures() > 0);
    assert!(presents("first.example") && !presents("second.example"), "what was in use stays");
    assert!(node.log().contains("the one before it stays"), "{}", node.log());
    write_pair(&root, &second, false, true);
    // Without a signal: the files have changed.
    until("the second is presented", SOON, || presents("second.example"));
    assert!(!presents("first.example"));
}

/// HTTP/2 without TLS inside of a connection that agreed on HTTP/1.1: something in between would not see its requests.
#[test]
fn h2c_is_not_smuggled() {
    let root = RootFile::new("h2c-root");
    let node = secured("h2c", &root, &[]);
    let upgrade = format!(
        "GET /healthz HTTP/1.1\r\nHost: {}\r\nConnection: Upgrade, HTTP2-Settings, close\r\nUpgrade: h2c\r\n\
         HTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA\r\n\r\n",
        node.address()
    );
    let client = root.client(None);
    let answer = block_on(client.exchange(node.address(), "127.0.0.1", Protocol::Http1, upgrade.as_bytes()));
    let answer = String::from_utf8_lossy(&answer.expect("it is answered")).into_owned();
    assert!(answer.starts_with("HTTP/1.1 200"), "it is answered as what it is: {answer}");
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    let answer = block_on(client.exchange(node.address(), "127.0.0.1", Protocol::Http1, preface));
    assert_eq!(answer.unwrap_or_default(), b"", "another protocol than was agreed on is not served");
    let agreed =
        block_on(client.exchange(node.address(), "127.0.0.1", Protocol::Http2, b"GET / HTTP/1.1\r\n\r\n"));
    assert_eq!(agreed.unwrap_or_default(), b"", "nor the other way round");
}

/// Many that begin a handshake and never end it. Whoever holds a lease over TLS keeps it, and newcomers are served.
#[test]
fn a_handshake_flood_loses_no_renewal() {
    let _turn = alone();
    let root = RootFile::new("flood-root");
    let node = secured("flood", &root, &[]);
    let endpoints: Endpoints = node.endpoint().parse().expect("an endpoint");
    let client = Client::connect(&endpoints.secured(root.client(None).0));
    block_on(async {
        let session = client.session().ttl(Duration::from_secs(3)).open().await.expect("it is opened");
        let lease = session.acquire("kept").wait().await.expect("it is held");
        let mut flood: Vec<TcpStream> = Vec::new();
        let started = std::time::Instant::now();
        let mut connected = 0;
        while started.elapsed() < Duration::from_secs(9) {
            for _ in 0..100 {
                if let Ok(mut stream) = TcpStream::connect_timeout(&node.address(), Duration::from_secs(1)) {
                    // The beginning of a record, or nothing at all.
                    if connected % 2 == 0 {
                        let _ = stream.write_all(&[0x16, 3, 1, 2]);
                    }
                    connected += 1;
                    flood.push(stream);
                }
            }
            if flood.len() > 3_000 {
                flood.drain(..1_000);
            }
            let _ = lease.permit().expect("it is held all the time");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let _ = lease.permit().expect("it is still held");
        println!("{connected} connections that never ended their handshake");
        // Those of the last second keep their places for that long; after it a newcomer takes one of them, although
        // all of them are still open.
        let newcomer = root.client(None);
        let served = async {
            while !newcomer
                .get(node.address(), "/readyz")
                .await
                .is_ok_and(|answer| answer.starts_with("HTTP/1.1 200"))
            {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        tokio::time::timeout(SOON, served).await.expect("a newcomer is served");
        drop(flood);
    });
}

#[test]
fn everything_works_over_tls() {
    let root = RootFile::new("everything-root");
    let node = secured("everything", &root, &[]);
    let tenure = |arguments: &[&str]| {
        let path = root.path();
        let output = run_tenure(&node.endpoint(), &[&["--root", path.as_str()][..], arguments].concat());
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    tenure(&["acquire", "a", "--ttl", "30s"]);
    assert!(tenure(&["get", "a"]).contains("held"));
    tenure(&["kv", "put", "k", "v"]);
    assert_eq!(tenure(&["run", "b", "--", "echo", "held"]).trim(), "held");
    let backup = root.file("backup").display().to_string();
    tenure(&["cluster", "backup", &backup]);
    let authority = root.authority();
    let by_https = |arguments: &[&str]| {
        let mut command = Command::new(tenure_binary());
        command.args(["--endpoints", &format!("https://{}", node.address())]).args(arguments);
        command.env("TENURE_CA", &authority).output().expect("it runs")
    };
    assert!(by_https(&["get", "a"]).status.success());
    let mut without = Command::new(tenure_binary());
    without.args(["--endpoints", &format!("https://{}", node.address()), "get", "a"]);
    let said = without.output().expect("it runs");
    assert_eq!(said.status.code(), Some(2), "{said:?}");
    assert!(String::from_utf8_lossy(&said.stderr).contains("--ca"), "{said:?}");
    let status = block_on(root.client(None).get(node.address(), "/v1/cluster")).expect("it is answered");
    assert!(status.contains("\"insecure\":false"), "{status}");
}

#[test]
fn beyond_this_machine_there_is_tls_or_a_warning() {
    let refused = |arguments: &[&str]| {
        let scratch = tenure_e2e::Scratch::new("beyond");
        let data = scratch.path().join("data").display().to_string();
        let mut command = Command::new(tenure_binary());
        command.args(["serve", "--listen", "0.0.0.0:0", "--data-dir", &data]).args(arguments);
        let output = command.output().expect("it runs");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let root = RootFile::new("beyond-root");
    for arguments in
        [&[][..], &["--root", &root.path(), "--client-tls", "both"], &["--client-tls", "require"]]
    {
        let (code, said) = refused(arguments);
        assert_eq!(code, Some(2), "{arguments:?}: {said}");
        assert!(said.contains("--root"), "{said}");
    }
}
