//! Bad input, a flood of connections and slow readers each get a clear error or nothing at all, and others
//! are served meanwhile (`no_one_takes_us_down`).

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use tenure_e2e::{Http, Node, alongside, find, path_segment, scale, skipped_without, until};

/// Others are served: a fresh lease can be taken and given back.
#[track_caller]
fn serves(node: &mut Node) {
    assert!(node.is_alive(), "the node has died");
    let mut http = node.http();
    let grant =
        http.post("/v1/leases/others/one:acquire", &json!({"holder": "o", "ttl_ms": 5_000})).expect(200);
    http.post("/v1/leases/others/one:release", &json!({"session": grant["session"]})).expect(200);
}

/// Every refusal has a stable code, a message for people and says that nothing was applied.
#[test]
fn bad_calls_are_refused_with_a_stable_code() {
    let _turn = alongside();
    let mut node = Node::start("bad");
    let mut http = node.http();
    let good = json!({"holder": "a", "ttl_ms": 5_000});
    let ttl = |ttl: Value| json!({"holder": "a", "ttl_ms": ttl});
    let acquire = |name: &str| format!("/v1/leases/{name}:acquire");
    let long = "x".repeat(513);
    let control = path_segment("a\u{7}b");
    let table: Vec<(&str, &str, String, Value, u16)> = vec![
        ("a name that is too long", "POST", acquire(&long), good.clone(), 400),
        ("an empty segment", "POST", acquire("a//b"), good.clone(), 400),
        ("an empty name", "POST", acquire(""), good.clone(), 400),
        ("a control character", "POST", acquire(&control), good.clone(), 400),
        ("a dot segment", "POST", acquire("a/%2E%2E/b"), good.clone(), 400),
        ("bytes that are no text", "POST", acquire("%FF%FE"), good.clone(), 400),
        ("a TTL of zero", "POST", acquire("ttl"), ttl(json!(0)), 400),
        ("a negative TTL", "POST", acquire("ttl"), ttl(json!(-5)), 400),
        ("a TTL below the limit", "POST", acquire("ttl"), ttl(json!(10)), 400),
        ("a TTL above the limit", "POST", acquire("ttl"), ttl(json!(86_400_000_u64)), 400),
        ("an absurd TTL", "POST", acquire("ttl"), ttl(json!(u64::MAX)), 400),
        ("a TTL that is no number", "POST", acquire("ttl"), ttl(json!("soon")), 400),
        ("an empty holder", "POST", acquire("h"), json!({"holder": "", "ttl_ms": 5_000}), 400),
        (
            "a holder that is too long",
            "POST",
            acquire("h"),
            json!({"holder": "h".repeat(257), "ttl_ms": 5_000}),
            400,
        ),
        (
            "an unknown mode",
            "POST",
            acquire("m"),
            json!({"holder": "a", "ttl_ms": 5_000, "mode": "loud"}),
            400,
        ),
        (
            "no slots",
            "POST",
            acquire("m"),
            json!({"holder": "a", "ttl_ms": 5_000, "mode": {"slots": 0}}),
            400,
        ),
        ("a list instead of an object", "POST", acquire("j"), json!([1, 2]), 400),
        ("a session that is none", "POST", acquire("s"), json!({"session": "nonsense"}), 400),
        ("nobody's session", "POST", acquire("s"), json!({"session": unknown_session(&mut http)}), 404),
        (
            "a renewal of nobody's session",
            "POST",
            format!("/v1/sessions/{}:renew", unknown_session(&mut http)),
            json!({}),
            404,
        ),
        (
            "no resources",
            "POST",
            "/v1/leases:acquire".into(),
            json!({"resources": [], "holder": "a", "ttl_ms": 5_000}),
            400,
        ),
        ("a verb that is none", "POST", "/v1/leases/a:shout".into(), json!({}), 404),
        ("a path that is none", "GET", "/v1/nothing".into(), Value::Null, 404),
        ("a lease never seen", "GET", "/v1/leases/never/seen".into(), Value::Null, 404),
        ("a register never written", "GET", "/v1/registers/never".into(), Value::Null, 404),
    ];
    for (what, method, path, body, status) in table {
        let body = if body.is_null() { None } else { Some(&body) };
        let reply = http.call(method, &path, body).unwrap_or_else(|error| panic!("{what}: {error}"));
        let shown = String::from_utf8_lossy(&reply.body).into_owned();
        assert_eq!(reply.status, status, "{what}: {shown}");
        let error = &reply.json()["error"];
        assert!(error["code"].as_str().is_some_and(|code| !code.is_empty()), "{what}: {shown}");
        assert!(error["message"].as_str().is_some_and(|message| !message.is_empty()), "{what}: {shown}");
        if status == 400 {
            assert!(reply.code().starts_with("invalid"), "{what}: {shown}");
        }
    }
    serves(&mut node);
}

/// The id of a session that has ended.
fn unknown_session(http: &mut Http) -> String {
    let opened = http.post("/v1/sessions", &json!({"holder": "gone", "ttl_ms": 5_000})).expect(200);
    let id = opened["session"].as_str().expect("an id").to_string();
    http.own(&id, "DELETE", "/v1/session", None).expect(200);
    id
}

/// Tokens that were never granted, or are another resource's, write nothing.
#[test]
fn a_foreign_token_writes_nothing() {
    let _turn = alongside();
    let node = Node::start("foreign");
    let mut http = node.http();
    http.post("/v1/leases/mine:acquire", &json!({"holder": "a", "ttl_ms": 60_000})).expect(200);
    http.post("/v1/leases/yours:acquire", &json!({"holder": "b", "ttl_ms": 60_000})).expect(200);
    let mut put = |resource: &str, token: Value| {
        http.put("/v1/registers/foreign", &json!({"value": "x", "resource": resource, "token": token}))
    };
    // Token 2 belongs to `yours`; 2^53 - 1 was made up; 0, -1 and 2^53 are no tokens.
    for token in [json!(2), json!(9_007_199_254_740_991_u64)] {
        let reply = put("mine", token.clone());
        assert_eq!(reply.status, 412, "token {token}: {}", String::from_utf8_lossy(&reply.body));
    }
    for token in [json!(0), json!(-1), json!(9_007_199_254_740_992_u64), json!("1")] {
        let reply = put("mine", token.clone());
        assert_eq!(reply.status, 400, "token {token}: {}", String::from_utf8_lossy(&reply.body));
    }
    put("mine", json!(1)).expect(200);
    assert_eq!(put("yours", json!(2)).code(), "wrong_guard");
}

/// Bytes that are no JSON, no HTTP, or far too many.
#[test]
fn malformed_bytes_are_refused() {
    let _turn = alongside();
    let mut node = Node::start("bytes");
    let bodies: [&[u8]; 6] = [b"", b"{", b"nonsense", b"\xff\xfe", b"{\"holder\":", b"[[[[[[[[[[[[[[[["];
    for body in bodies {
        let mut bytes = format!(
            "POST /v1/leases/a:acquire HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {}\r\n\r\n",
            body.len()
        )
        .into_bytes();
        bytes.extend(body);
        let reply = node.http().raw(&bytes).unwrap_or_else(|error| panic!("{body:?}: {error}"));
        assert_eq!(reply.status, 400, "{body:?}: {}", String::from_utf8_lossy(&reply.body));
        assert!(reply.code().starts_with("invalid"), "{body:?}: {}", reply.code());
    }
    // Deep nesting must not exhaust the stack.
    let deep = format!("{{\"holder\":{}", "[".repeat(200_000));
    let head =
        format!("POST /v1/sessions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {}\r\n\r\n", deep.len());
    if let Ok(reply) = node.http().raw(format!("{head}{deep}").as_bytes()) {
        assert!((400..500).contains(&reply.status), "{}", reply.status);
    }
    // Not HTTP at all: hung up on, or refused; never served, never waited for.
    for garbage in
        [&b"\x16\x03\x01\x02\x00\x01\x00\x01"[..], b"GET\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nXX\r\n\r\nrubbish"]
    {
        let mut connection = TcpStream::connect(node.address()).expect("the server accepts connections");
        connection.set_read_timeout(Some(Duration::from_secs(5))).expect("a time limit can be set");
        // The server may hang up while we write; what matters is that it lives.
        let _ = connection.write_all(garbage);
        let _ = connection.shutdown(std::net::Shutdown::Write);
        let mut answer = Vec::new();
        let _ = connection.read_to_end(&mut answer);
        assert!(!answer.starts_with(b"HTTP/1.1 200"), "{garbage:?} was served");
    }
    serves(&mut node);
}

/// A body of 100 MB is refused before it is read, and costs no memory.
#[test]
fn a_giant_body_is_refused_early() {
    let _turn = alongside();
    let mut node = Node::start("giant");
    let before = node.resident_bytes();
    let mut connection = TcpStream::connect(node.address()).expect("the server accepts connections");
    connection.set_read_timeout(Some(Duration::from_secs(10))).expect("a time limit can be set");
    connection.set_write_timeout(Some(Duration::from_secs(10))).expect("a time limit can be set");
    let head = "POST /v1/sessions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100000000\r\n\r\n";
    connection.write_all(head.as_bytes()).expect("a head fits the buffers");
    let block = vec![b'x'; 1 << 20];
    let mut sent = 0;
    // The server refuses early and hangs up; writing fails then, and that is the point.
    while sent < 100_000_000 && connection.write_all(&block).is_ok() {
        sent += block.len();
    }
    let mut answer = Vec::new();
    let _ = connection.read_to_end(&mut answer);
    let answer = String::from_utf8_lossy(&answer);
    assert!(!answer.starts_with("HTTP/1.1 2"), "{answer}");
    if !answer.is_empty() {
        assert!(answer.starts_with("HTTP/1.1 413") || answer.starts_with("HTTP/1.1 400"), "{answer}");
    }
    let grown = node.resident_bytes().saturating_sub(before);
    assert!(grown < 50 << 20, "{grown} bytes more in memory after a refused body");
    serves(&mut node);
}

/// Connections that do nothing, or never finish a request, do not keep others out.
#[test]
fn idle_connections_keep_nobody_out() {
    let _turn = alongside();
    let mut node = Node::start("idle");
    let connections: Vec<TcpStream> = (0..scale().idle_connections)
        .filter_map(|number| {
            let mut connection = TcpStream::connect(node.address()).ok()?;
            if number % 2 == 0 {
                // A request that never ends; the server may hang up on it at any time.
                let _ = connection.write_all(b"POST /v1/sessions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-");
            }
            Some(connection)
        })
        .collect();
    serves(&mut node);
    println!("{} connections open", connections.len());
    drop(connections);
    serves(&mut node);
}

/// Readers that never read their answers, and watchers that never read their events, cost a bounded amount.
#[test]
fn slow_readers_and_watchers_hold_nobody_up() {
    let _turn = alongside();
    let mut node = Node::start("slow");
    let mut watchers: Vec<TcpStream> = Vec::new();
    for _ in 0..20 {
        let mut watcher = TcpStream::connect(node.address()).expect("the server accepts connections");
        watcher
            .write_all(b"GET /v1/watch?prefix= HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            .expect("a request fits");
        watchers.push(watcher);
    }
    let mut readers: Vec<TcpStream> = Vec::new();
    for _ in 0..20 {
        let mut reader = TcpStream::connect(node.address()).expect("the server accepts connections");
        reader.set_write_timeout(Some(Duration::from_millis(200))).expect("a time limit can be set");
        // Asks on and on and reads nothing, until the server stops listening.
        let question = b"GET /v1/leases?prefix= HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".repeat(100);
        for _ in 0..200 {
            if reader.write_all(&question).is_err() {
                break;
            }
        }
        readers.push(reader);
    }
    let before = node.resident_bytes();
    let value = "v".repeat(32 * 1024);
    let mut http = node.http();
    for number in 0..2_000 {
        http.put(&format!("/v1/registers/slow/{}", number % 10), &json!({"value": value})).expect(200);
    }
    let grown = node.resident_bytes().saturating_sub(before);
    println!("{grown} bytes more in memory after 64 MB of events that nobody reads");
    assert!(grown < 512 << 20, "{grown} bytes more in memory");
    serves(&mut node);
    drop((watchers, readers));
    until("the node serves after all have gone", Duration::from_secs(5), || {
        node.http().call("GET", "/readyz", None).is_ok_and(|reply| reply.status == 200)
    });
}

/// A page of another origin cannot make a browser act on the server.
#[test]
fn foreign_origins_and_hosts_are_refused() {
    let _turn = alongside();
    let node = Node::start("origin");
    let body = r#"{"holder":"a","ttl_ms":5000}"#;
    for header in ["Origin: http://evil.example\r\nHost: 127.0.0.1", "Host: evil.example"] {
        let request =
            format!("POST /v1/sessions HTTP/1.1\r\n{header}\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        let reply = node.http().raw(request.as_bytes()).unwrap_or_else(|error| panic!("{header}: {error}"));
        assert!((400..500).contains(&reply.status), "{header}: {}", reply.status);
    }
}

/// Calls made from the server's own schema find no answer in the five hundreds.
#[test]
fn the_schema_finds_no_internal_error() {
    if skipped_without("schemathesis", "the_schema_finds_no_internal_error") {
        return;
    }
    let _turn = alongside();
    let mut node = Node::start("schema");
    let examples = if scale().full { "500" } else { "20" };
    let schema = format!("http://{}/openapi.json", node.address());
    let output = Command::new(find("schemathesis").expect("asked for above"))
        .args(["run", &schema, "--checks", "not_a_server_error", "--max-examples", examples])
        .args([
            "--exclude-path-regex",
            "watch",
            "--request-timeout",
            "10",
            "--phases",
            "examples,coverage,fuzzing",
        ])
        .current_dir(node.scratch().path())
        .output()
        .expect("schemathesis can be started");
    let printed =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{printed}");
    assert!(!printed.contains("Tested: 0"), "nothing was tried, which proves nothing: {printed}");
    serves(&mut node);
}
