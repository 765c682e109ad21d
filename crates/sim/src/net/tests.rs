//! The simulated network does what TCP does. If it did more, the simulation would miss bugs; if it did less,
//! it would find bugs that do not exist.

use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;
use crate::host::Process;

/// A process that sends what it reads back to whoever connects, and one that connects and says something.
struct World {
    net: Net,
    server: Option<Process>,
    client: Process,
    received: Arc<Mutex<Vec<String>>>,
}

const ADDRESS: &str = "10.0.0.1:9";

fn serve(net: &Net, now: Tick) -> Process {
    let port = net.process(1);
    Process::start(now, 0, 1, move |_| async move {
        let mut listener = port.listen(ADDRESS).expect("nobody else listens");
        while let Ok((mut stream, _)) = listener.next().await {
            tokio::spawn(async move {
                let mut buffer = [0; 64];
                while let Ok(many @ 1..) = stream.read(&mut buffer).await {
                    let _ = stream.write_all(&buffer[..many]).await;
                }
            });
        }
    })
}

impl World {
    fn new() -> World {
        let net = Net::new(Dice::new(7));
        let server = serve(&net, 0);
        let port = net.process(2);
        let received: Arc<Mutex<Vec<String>>> = Arc::default();
        let receiving = received.clone();
        let client = Process::start(0, 0, 2, move |_| async move {
            let say = |what: String| receiving.lock().unwrap().push(what);
            loop {
                let mut stream = match port.connect(ADDRESS).await {
                    Ok(stream) => stream,
                    Err(error) => {
                        say(format!("connect: {:?}", error.kind()));
                        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
                        continue;
                    }
                };
                for number in 0u64.. {
                    let mut buffer = [0; 64];
                    if stream.write_all(number.to_string().as_bytes()).await.is_err() {
                        say("broken".into());
                        break;
                    }
                    match stream.read(&mut buffer).await {
                        Ok(0) => {
                            say("closed".into());
                            break;
                        }
                        Ok(many) => say(String::from_utf8_lossy(&buffer[..many]).into_owned()),
                        Err(error) => {
                            say(format!("{:?}", error.kind()));
                            break;
                        }
                    }
                    tokio::time::sleep(std::time::Duration::from_millis(10)).await;
                }
            }
        });
        World { net, server: Some(server), client, received }
    }

    fn run(&mut self, from: Tick, until: Tick) {
        for now in from..until {
            self.net.tick(now);
            if let Some(server) = &mut self.server {
                server.run(now, now + 1);
            }
            self.client.run(now, now + 1);
        }
    }

    fn received(&self) -> Vec<String> {
        std::mem::take(&mut self.received.lock().unwrap())
    }
}

#[test]
fn what_is_written_arrives_in_order() {
    let mut world = World::new();
    world.run(0, 300);
    let received = world.received();
    assert!(received.len() > 10, "{received:?}");
    let numbers: Vec<String> = (0..received.len()).map(|number| number.to_string()).collect();
    assert_eq!(received, numbers);
}

#[test]
fn a_cut_loses_nothing_that_is_sent_again() {
    let mut world = World::new();
    world.run(0, 100);
    world.net.cut(2, 1, true);
    world.run(100, 110);
    let before = world.received().len();
    world.run(110, 2_000);
    assert_eq!(world.received(), Vec::<String>::new(), "nothing comes through a cut");
    world.net.cut(2, 1, false);
    world.run(2_000, 4_000);
    let received = world.received();
    assert_eq!(received[0], before.to_string(), "the stream goes on where it was");
}

#[test]
fn a_killed_process_closes_its_streams_and_refuses_new_ones() {
    let mut world = World::new();
    world.run(0, 100);
    world.received();
    world.server.take().unwrap().end(100);
    world.run(100, 400);
    let received = world.received();
    let ends = ["closed", "broken", "ConnectionReset"];
    assert!(received.iter().any(|what| ends.contains(&what.as_str())), "{received:?}");
    assert_eq!(received.last().map(String::as_str), Some("connect: ConnectionRefused"));
    world.server = Some(serve(&world.net, 400));
    world.run(400, 700);
    assert!(world.received().contains(&"0".to_owned()), "the next process is found");
}

#[test]
fn a_machine_without_power_says_nothing_until_it_is_back() {
    let mut world = World::new();
    world.run(0, 100);
    world.net.power_off(1);
    world.server.take().unwrap().end(100);
    world.run(100, 110);
    world.received();
    world.run(110, 5_000);
    assert_eq!(world.received(), Vec::<String>::new(), "nobody tells that the power went");
    world.server = Some(serve(&world.net, 5_000));
    world.run(5_000, 5_100);
    // It waits for an answer that nobody owes it any more; only its own time limit could help, and it has
    // none.
    assert_eq!(world.received(), Vec::<String>::new());
}

#[test]
fn what_was_sent_is_sent_again_from_its_beginning_and_nobody_receives_the_answers() {
    let net = Net::new(Dice::new(7));
    net.keep_what_is_said();
    let read: Arc<Mutex<Vec<Vec<u8>>>> = Arc::default();
    let (port, reads) = (net.process(1), read.clone());
    let mut server = Process::start(0, 0, 1, move |_| async move {
        let mut listener = port.listen(ADDRESS).expect("nobody else listens");
        while let Ok((mut stream, _)) = listener.next().await {
            let reads = reads.clone();
            let number = {
                let mut read = reads.lock().unwrap();
                read.push(Vec::new());
                read.len() - 1
            };
            tokio::spawn(async move {
                let mut buffer = [0; 64];
                while let Ok(many @ 1..) = stream.read(&mut buffer).await {
                    reads.lock().unwrap()[number].extend(&buffer[..many]);
                    let _ = stream.write_all(b"heard").await;
                }
            });
        }
    });
    let port = net.process(2);
    let mut client = Process::start(0, 0, 2, move |_| async move {
        let mut stream = port.connect(ADDRESS).await.expect("somebody listens");
        for word in ["one ", "two ", "three"] {
            stream.write_all(word.as_bytes()).await.expect("the stream is open");
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        std::future::pending::<()>().await;
    });
    let mut run = |from, until| {
        for now in from..until {
            net.tick(now);
            server.run(now, now + 1);
            client.run(now, now + 1);
        }
    };
    run(0, 100);
    assert_eq!(net.repeat(&[2]), None, "whoever is spared is not repeated");
    assert_eq!(net.repeat(&[]), Some((2, 1, 13)));
    run(100, 400);
    let all: Vec<String> =
        read.lock().unwrap().iter().map(|said| String::from_utf8_lossy(said).into()).collect();
    assert_eq!(all, ["one two three", "one two three"]);
}
