//! One lane over loopback: header, tag and chunk from one end to the other, as `dispatch` sends and
//! the receiver's `lane` receives them, without hash and disk. Both ends share the machine's cores.

use std::io::IoSlice;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput};
use lanes::dial::Dialer;
use lanes::identity::{Identity, random};
use lanes::listen::{self, Doorkeeper, Guests, Pass, Visitor};
use lanes::tune::{SourcePorts, Tuning};
use lanes::{Lane, tls};
use proto::control::{LaneId, SessionId, Transport};
use proto::frame::header_len;
use proto::join::{Request, Secret};
use tokio::net::TcpListener;
use tokio::runtime;
use tokio::sync::mpsc;

use crate::CHUNK;

/// Bytes that the receiver takes at once: its `HASH_STEP`.
const STEP: usize = 128 << 10;
const PATIENCE: Duration = Duration::from_secs(30);

pub fn all(c: &mut Criterion) {
    let runtime = runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let mut group = c.benchmark_group("lane");
    group.throughput(Throughput::Bytes(CHUNK.bytes().into()));
    for (name, transport) in [("tcp", Transport::Tcp), ("tls", Transport::Tls)] {
        let (mut ours, theirs) = runtime.block_on(join(transport));
        let (arrived, mut arrivals) = mpsc::unbounded_channel();
        runtime.spawn(receive(theirs, arrived));
        group.bench_function(BenchmarkId::new(name, CHUNK), |b| {
            b.iter_custom(|count| runtime.block_on(send(&mut ours, &mut arrivals, count)));
        });
    }
    group.finish();
}

/// The time until `count` chunks have arrived.
async fn send(lane: &mut Lane, arrivals: &mut mpsc::UnboundedReceiver<()>, count: u64) -> Duration {
    let payload = crate::noise(CHUNK.bytes() as usize);
    let mut header = vec![0; header_len(CHUNK)];
    crate::frame::data(CHUNK).encode(CHUNK, &mut header);
    let started = Instant::now();
    for _ in 0..count {
        let tag = lane.tag(&header);
        let tag = tag.as_ref().map_or(&[][..], |tag| tag);
        let mut parts = [&header, tag, &payload].map(IoSlice::new);
        lane.send(&mut parts).await.unwrap();
    }
    for _ in 0..count {
        arrivals.recv().await.unwrap();
    }
    started.elapsed()
}

/// Tells of every chunk that is complete; ends with the connection.
async fn receive(mut lane: Lane, arrived: mpsc::UnboundedSender<()>) {
    let mut header = vec![0; header_len(CHUNK)];
    let mut buffer = vec![0; CHUNK.bytes() as usize];
    while lane.receive_header(&mut header).await.is_ok() {
        for step in buffer.chunks_mut(STEP) {
            lane.receive(step).await.unwrap();
        }
        let _ = arrived.send(());
    }
}

/// The only session that there is.
struct Book {
    session: SessionId,
    pass: Pass,
}

impl Guests for Book {
    fn pass(&self, session: &SessionId) -> Option<Pass> {
        (*session == self.session).then(|| self.pass.clone())
    }

    fn welcome(&self, _: &Request) -> bool {
        true
    }
}

/// Both ends of a lane.
async fn join(transport: Transport) -> (Lane, Lane) {
    let (ours, theirs) = (Identity::one_time().unwrap(), Identity::one_time().unwrap());
    let (secret, session) = (Secret(random().unwrap()), SessionId(random().unwrap()));
    let tuning = Tuning { unsent: CHUNK.bytes(), dead_after: PATIENCE };
    let (listener, port) = listen::bind(None).unwrap();
    let listener = TcpListener::from_std(listener).unwrap();
    let dialer = Dialer {
        config: tls::client(&ours, tls::pin(theirs.fingerprint())).unwrap(),
        transport,
        secret: secret.clone(),
        session,
        epoch: 1,
        ports: SourcePorts::starting_at(u16::from_le_bytes(random().unwrap())),
        tuning,
        patience: PATIENCE,
    };
    let keeper = Doorkeeper { config: tls::server(&theirs, tls::pin(ours.fingerprint())).unwrap(), tuning };
    let book = Book { session, pass: Pass { transport, secret, peer: ours.fingerprint() } };
    let admit = tokio::spawn(async move {
        let (socket, _) = listener.accept().await.unwrap();
        match keeper.admit(socket, &book).await.unwrap() {
            Visitor::Lane(_, lane) => lane,
            Visitor::Caller(..) => unreachable!("this door hears no callers"),
        }
    });
    let lane = dialer.join(LaneId(1), SocketAddr::from(([127, 0, 0, 1], port))).await.unwrap();
    (lane, admit.await.unwrap())
}
