//! A server that speaks TLS.

use super::{End, Server};
use std::path::PathBuf;
use std::process::Command;

/// The settings for a certificate that is its own authority.
const REQUEST: &str = "[req]\nprompt = no\ndistinguished_name = name\nx509_extensions = more\n[name]\nCN = localhost\n\
    [more]\nsubjectAltName = DNS:localhost, IP:127.0.0.1\nbasicConstraints = critical, CA:FALSE\n";

/// Starts a server with a certificate, and returns the file of its authority.
pub fn server() -> (Server, PathBuf) {
    let server = Server::start(&[]);
    server.stop(End::Fast);
    server.write_file("request.cnf", REQUEST);
    let mut openssl = Command::new("openssl");
    openssl.args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-config", "request.cnf"]);
    openssl.args(["-keyout", "server.key", "-out", "server.crt"]).current_dir(server.data());
    let made = openssl.output().expect("there is no openssl on this machine: apt-get install openssl");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    for file in ["server.key", "server.crt"] {
        let text = std::fs::read_to_string(server.data().join(file)).unwrap();
        std::fs::remove_file(server.data().join(file)).unwrap();
        server.write_file(file, &text);
        let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(server.data().join(file), private).unwrap();
    }
    server.write_file("postgresql.auto.conf", "ssl = on\n");
    server.start_again();
    let authority = server.data().join("server.crt");
    (server, authority)
}
