//! A Redis server for a run of a program: a child on a free port of the loopback, which flushes its
//! append-only file each second.

use crate::result::Result;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// The server. Its drop kills it.
pub struct Server {
    child: Child,
    pub port: u16,
}

impl Server {
    /// Starts one in this directory.
    pub fn start(directory: &Path) -> Result<Self> {
        // Another program may take a port between the look and the start.
        for _ in 0..20 {
            let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
            let mut started = program();
            started.args(["--bind", "127.0.0.1", "--port", &port.to_string(), "--save", ""]);
            started.args(["--appendonly", "yes", "--appendfsync", "everysec"]).current_dir(directory);
            let mut server = Self { child: started.stdout(Stdio::null()).spawn().map_err(missing)?, port };
            while server.child.try_wait()?.is_none() {
                if TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok() {
                    return Ok(server);
                }
                protocol::rest(Duration::from_millis(1));
            }
        }
        Err("the Redis server does not start".into())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

/// Returns the version of the server.
pub fn about() -> Result<String> {
    let said = String::from_utf8(program().arg("--version").output().map_err(missing)?.stdout)?;
    let version = said.split(' ').find_map(|word| word.strip_prefix("v=")).unwrap_or_default();
    Ok(format!("{} {version}, append-only file, everysec", said.split(' ').next().unwrap_or_default()))
}

/// `WATERLINE_REDIS_SERVER` names another program, such as that of Valkey.
fn program() -> Command {
    Command::new(std::env::var_os("WATERLINE_REDIS_SERVER").unwrap_or_else(|| "redis-server".into()))
}

fn missing(error: std::io::Error) -> String {
    format!("there is no Redis server (redis-server): {error}. Run `bash .ci/setup engines`")
}
