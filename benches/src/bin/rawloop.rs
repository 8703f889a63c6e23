//! The raw loop: the minimal mover, as the physical bound of this pair of disks and this link.
//!
//! N blocking threads per end, a plain TCP connection each: direct read, send (16-byte header and
//! 1 MiB of data), receive, direct write; one fdatasync at the end. Buffers lie in huge pages. With
//! `--hash` at both ends it is the bound of a mover that checks: the BLAKE3 hash of each piece, made
//! by the sender, travels after its header and is compared before the piece is written.
//!
//! ```text
//! rawloop recv PORT FILE|null STREAMS [--size BYTES [--allocate]] [--hash]
//! rawloop send HOST PORT FILE|null STREAMS [--size BYTES] [--sparse] [--hash]
//! ```
//!
//! The receiver starts FILE anew; `--allocate` reserves `--size` bytes first. The sender's
//! `--sparse` sends what SEEK_DATA and SEEK_HOLE call data; with `null` it sends `--size` bytes
//! (default 4 GiB) out of memory. Both ends print one line of JSON; `bps` is bytes per second. The
//! sender's time runs from the first read to the receiver's "durable" answer.
//!
//! Non-goals: surviving anything, reordering anything.

use blockio::{BLOCK, Buffer, Engine, EngineChoice, Image, Pool};
use std::error::Error;
use std::fs::{self, File};
use std::io::{self, IoSlice, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, TcpListener, TcpStream};
use std::ops::Range;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

type Failed = Box<dyn Error + Send + Sync>;

const CHUNK: usize = 1 << 20;
const HEADER: usize = 16;
/// Bytes that are received at once when they are hashed: they are in the core's cache still.
const HASH_STEP: usize = 128 << 10;
const DURABLE: u8 = b'k';
const USAGE: &str = "usage: rawloop recv PORT FILE|null STREAMS [--size BYTES [--allocate]] [--hash]
       rawloop send HOST PORT FILE|null STREAMS [--size BYTES] [--sparse] [--hash]";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let outcome = match Options::parse(&words) {
        Ok((Side::Send { host }, options)) => send(&host, &options),
        Ok((Side::Receive, options)) => receive(&options),
        Err(why) => Err(format!("{why}\n{USAGE}").into()),
    };
    let (text, code) = match outcome {
        Ok(line) => (writeln!(io::stdout(), "{line}"), ExitCode::SUCCESS),
        Err(error) => (writeln!(io::stderr(), "rawloop: {error}"), ExitCode::FAILURE),
    };
    // Nobody reads it: then there is nobody to tell.
    let _ = text;
    code
}

enum Side {
    Send { host: String },
    Receive,
}

struct Options {
    port: u16,
    /// `None` is memory.
    file: Option<PathBuf>,
    streams: usize,
    size: Option<u64>,
    allocate: bool,
    sparse: bool,
    hash: bool,
}

impl Options {
    fn parse(words: &[String]) -> Result<(Side, Options), Failed> {
        let mut places = Vec::new();
        let (mut size, mut allocate, mut sparse, mut hash) = (None, false, false, false);
        let mut words = words.iter();
        while let Some(word) = words.next() {
            match word.as_str() {
                "--size" => size = Some(words.next().ok_or("--size: no number")?.parse()?),
                "--allocate" => allocate = true,
                "--sparse" => sparse = true,
                "--hash" => hash = true,
                option if option.starts_with('-') => return Err(format!("unknown {option}").into()),
                place => places.push(place),
            }
        }
        let (side, rest) = match places.as_slice() {
            ["send", host, rest @ ..] => (Side::Send { host: (*host).to_owned() }, rest),
            ["recv", rest @ ..] => (Side::Receive, rest),
            _ => return Err("send or recv?".into()),
        };
        let [port, file, streams] = rest else {
            return Err("wrong number of arguments".into());
        };
        let file = (*file != "null").then(|| PathBuf::from(file));
        let streams: usize = streams.parse()?;
        if streams == 0 {
            return Err("at least one stream".into());
        }
        if allocate && size.is_none() {
            return Err("--allocate needs --size".into());
        }
        Ok((side, Options { port: port.parse()?, file, streams, size, allocate, sparse, hash }))
    }
}

/// What the sending threads share.
struct Source {
    file: Option<(File, Image)>,
    size: u64,
    sparse: bool,
    hash: bool,
    next: Mutex<Cursor>,
}

#[derive(Default)]
struct Cursor {
    at: u64,
    /// End of the present run of data.
    end: u64,
}

impl Source {
    fn open(options: &Options) -> Result<Source, Failed> {
        let file = match &options.file {
            None => None,
            Some(path) => {
                let image = Image::open_source(path, true)?;
                image.sync_before_map()?;
                let direct = File::options().read(true).custom_flags(blockio::O_DIRECT).open(path)?;
                Some((direct, image))
            }
        };
        let size = file.as_ref().map_or(options.size.unwrap_or(4 << 30), |(_, image)| image.size());
        Ok(Source { file, size, sparse: options.sparse, hash: options.hash, next: Mutex::default() })
    }

    /// The next piece to send: aligned, at most a chunk.
    fn claim(&self) -> Result<Option<Range<u64>>, Failed> {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        if next.at >= next.end {
            let run = match &self.file {
                Some((_, image)) if self.sparse => image.next_data(next.at)?,
                _ => Some(next.at..self.size).filter(|run| !run.is_empty()),
            };
            let Some(run) = run else { return Ok(None) };
            next.at = run.start - run.start % BLOCK as u64;
            next.end = run.end.next_multiple_of(BLOCK as u64).min(self.size);
        }
        let end = next.end.min(next.at + CHUNK as u64);
        let piece = next.at..end;
        next.at = end;
        Ok(Some(piece))
    }

    fn read(&self, piece: &Range<u64>, buffer: &mut Buffer) -> Result<usize, Failed> {
        let len = usize::try_from(piece.end - piece.start)?;
        if let Some((file, _)) = &self.file {
            let mut done = 0;
            while done < len {
                // Whole blocks, also at the end of the file: direct reads take no others.
                let room = &mut buffer[done..len.next_multiple_of(BLOCK)];
                match file.read_at(room, piece.start + done as u64)? {
                    0 => return Err("the file became shorter".into()),
                    count => done += count,
                }
            }
        }
        Ok(len)
    }
}

fn send(host: &str, options: &Options) -> Result<String, Failed> {
    let source = Source::open(options)?;
    let pool = Pool::new(options.streams, CHUNK)?;
    let links = (0..options.streams)
        .map(|_| connect(host, options.port))
        .collect::<Result<Vec<_>, _>>()
        .map_err(|e| format!("cannot connect to {host} port {}: {e}", options.port))?;
    let (start, cpu, sent) = (Instant::now(), cpu_seconds(), AtomicU64::new(0));
    all(links, |link| {
        let buffer = pool.try_take().ok_or("a buffer per stream")?;
        send_stream(link, &source, buffer, &sent)
    })?;
    Ok(report(sent.into_inner(), start.elapsed(), cpu_seconds() - cpu))
}

fn send_stream(
    mut link: TcpStream,
    source: &Source,
    mut buffer: Buffer,
    sent: &AtomicU64,
) -> Result<(), Failed> {
    while let Some(piece) = source.claim()? {
        let len = source.read(&piece, &mut buffer)?;
        let header = header(piece.start, u32::try_from(len)?);
        let hash = source.hash.then(|| blake3::hash(&buffer[..len]));
        let hash: &[u8] = hash.as_ref().map_or(&[], |hash| hash.as_bytes());
        let mut parts = &mut [IoSlice::new(&header), IoSlice::new(hash), IoSlice::new(&buffer[..len])][..];
        while !parts.is_empty() {
            // One call for all: the header alone would be a packet of its own.
            match link.write_vectored(parts) {
                Ok(0) => return Err("the receiver went away".into()),
                Ok(count) => IoSlice::advance_slices(&mut parts, count),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e.into()),
            }
        }
        sent.fetch_add(len as u64, Ordering::Relaxed);
    }
    // Length 0 is the end, and its offset is the size.
    link.write_all(&header(source.size, 0))?;
    let mut answer = [0];
    link.read_exact(&mut answer)?;
    if answer == [DURABLE] { Ok(()) } else { Err("the receiver did not say durable".into()) }
}

fn receive(options: &Options) -> Result<String, Failed> {
    let pool = Pool::new(options.streams, CHUNK)?;
    let target = options.file.as_deref().map(|path| create(path, options)).transpose()?;
    let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, options.port))
        .or_else(|_| TcpListener::bind((Ipv4Addr::UNSPECIFIED, options.port)))?;
    let links = (0..options.streams)
        .map(|_| listener.accept().map(|(link, _)| link))
        .collect::<Result<Vec<_>, _>>()?;
    let (start, cpu, received) = (Instant::now(), cpu_seconds(), AtomicU64::new(0));
    let (arrived, durable) = (Barrier::new(options.streams), Barrier::new(options.streams));
    all(links, |mut link| {
        let buffer = pool.try_take().ok_or("a buffer per stream")?;
        let size = receive_stream(&mut link, target.as_ref(), buffer, options.hash, &received)?;
        if arrived.wait().is_leader()
            && let Some(file) = &target
        {
            // Cuts off the padding of the last block.
            file.set_len(size)?;
            file.sync_data()?;
        }
        durable.wait();
        link.write_all(&[DURABLE])?;
        Ok(())
    })?;
    Ok(report(received.into_inner(), start.elapsed(), cpu_seconds() - cpu))
}

fn create(path: &Path, options: &Options) -> Result<File, Failed> {
    let mut how = File::options();
    let how = how.read(true).write(true).create(true).truncate(true);
    let file = how.custom_flags(blockio::O_DIRECT).open(path)?;
    let Some(size) = options.size else {
        return Ok(file);
    };
    file.set_len(size)?;
    if options.allocate {
        let parent = path.parent().filter(|p| !p.as_os_str().is_empty());
        let folder = File::open(parent.unwrap_or(Path::new(".")))?;
        let name = path.file_name().ok_or("a file, not a folder")?;
        let image = Image::open_at(folder.as_fd(), name, path, false)?;
        let engine = Engine::start(EngineChoice::Sync, 1, &Pool::new(1, BLOCK)?)?;
        if !block_on(engine.allocate(&image, 0..size))? {
            return Err("this file system has no fallocate".into());
        }
    }
    Ok(file)
}

/// Writes what arrives; the size that the sender gives at the end.
fn receive_stream(
    link: &mut TcpStream,
    target: Option<&File>,
    mut buffer: Buffer,
    hash: bool,
    received: &AtomicU64,
) -> Result<u64, Failed> {
    loop {
        let mut header = [0; HEADER];
        link.read_exact(&mut header)?;
        let (offset, len) = parse(&header);
        let len = usize::try_from(len)?;
        if len == 0 {
            return Ok(offset);
        }
        let data = buffer.get_mut(..len).ok_or("a piece larger than a chunk")?;
        if hash {
            receive_hashed(link, data)?;
        } else {
            link.read_exact(data)?;
        }
        if let Some(file) = target {
            file.write_all_at(&buffer[..len.next_multiple_of(BLOCK)], offset)?;
        }
        received.fetch_add(len as u64, Ordering::Relaxed);
    }
}

/// Fills `data`, and compares it with the hash that comes before it.
fn receive_hashed(link: &mut TcpStream, data: &mut [u8]) -> Result<(), Failed> {
    let mut expected = [0; blake3::OUT_LEN];
    link.read_exact(&mut expected)?;
    let mut hasher = blake3::Hasher::new();
    for step in data.chunks_mut(HASH_STEP) {
        link.read_exact(step)?;
        hasher.update(step);
    }
    if hasher.finalize() == expected { Ok(()) } else { Err("a piece differs from what was sent".into()) }
}

/// Runs `work` on each connection in a thread of its own. The first failure ends the process: the
/// other threads may wait at a barrier for the one that failed.
fn all(links: Vec<TcpStream>, work: impl Fn(TcpStream) -> Result<(), Failed> + Sync) -> Result<(), Failed> {
    for link in &links {
        link.set_nodelay(true)?;
    }
    thread::scope(|scope| {
        for link in links {
            scope.spawn(|| {
                if let Err(error) = work(link) {
                    let _ = writeln!(io::stderr(), "rawloop: {error}");
                    std::process::exit(1);
                }
            });
        }
    });
    Ok(())
}

/// Tries for five seconds: the receiver may be starting.
fn connect(host: &str, port: u16) -> io::Result<TcpStream> {
    let deadline = Instant::now() + Duration::from_secs(5);
    loop {
        match TcpStream::connect((host, port)) {
            Err(e) if e.kind() == io::ErrorKind::ConnectionRefused && Instant::now() < deadline => {
                thread::sleep(Duration::from_millis(50));
            }
            other => return other,
        }
    }
}

/// Offset and length, big-endian, and four bytes of padding.
fn header(offset: u64, len: u32) -> [u8; HEADER] {
    let value = u128::from(offset) << 64 | u128::from(len) << 32;
    value.to_be_bytes()
}

fn parse(header: &[u8; HEADER]) -> (u64, u32) {
    let [a, b, c, d, e, f, g, h, i, j, k, l, ..] = *header;
    (u64::from_be_bytes([a, b, c, d, e, f, g, h]), u32::from_be_bytes([i, j, k, l]))
}

fn report(bytes: u64, time: Duration, cpu: f64) -> String {
    let seconds = time.as_secs_f64();
    #[allow(clippy::cast_precision_loss, reason = "a rate")]
    let rate = bytes as f64 / seconds;
    format!(r#"{{"bytes":{bytes},"seconds":{seconds:.3},"bps":{rate:.0},"cpu_seconds":{cpu:.2}}}"#)
}

/// User and system time of this process so far: fields 14 and 15 of `proc_pid_stat(5)`, in ticks
/// of 1/100 s on every Linux (USER_HZ).
fn cpu_seconds() -> f64 {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The name in parentheses may hold spaces.
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    let ticks: f64 = fields.skip(11).take(2).filter_map(|field| field.parse::<f64>().ok()).sum();
    ticks / 100.0
}

/// Runs one future on this thread: all that is asynchronous here is a single call.
fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}
