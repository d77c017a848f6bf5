//! A server that accepts no connection without TLS.

use crate::program::At;
use crate::server::tls::server;
use waterline_postgres::PgOptions;

#[test]
fn a_tls_server_must_prove_its_name() {
    let (server, authority) = server();
    let database = server.database();
    database.store(PgOptions::new()).queue("mail", Default::default()).unwrap();
    server.write_file("pg_hba.conf", "hostssl all all 127.0.0.1/32 trust\n");
    database.client().batch_execute("SELECT pg_reload_conf()").unwrap();
    let of = |host: &str, more: &str| {
        At::postgres(&format!("postgres://postgres@{host}:{}/{}?{more}", server.port(), database.name))
    };
    // The listening process reloads its files with a delay.
    common::eventually("a server that wants TLS", || of("127.0.0.1", "").call("queues").code == 1);
    let file = format!("sslrootcert={}", authority.display());
    for mode in ["require", "verify-full"] {
        let queues = of("127.0.0.1", &format!("sslmode={mode}&{file}")).records("queues");
        assert_eq!(queues[0]["name"], "mail", "{mode}");
    }
    let key = authority.with_file_name("server.key");
    for (host, more, parts) in [
        ("127.0.0.1", String::new(), ["cannot be used", "no encryption"]),
        ("127.0.0.1", "sslmode=require".to_owned(), ["sslrootcert=FILE", "URL"]),
        (
            "elsewhere.example",
            format!("hostaddr=127.0.0.1&sslmode=verify-full&{file}"),
            ["certificate", "the URL needs the name"],
        ),
        ("127.0.0.1", "sslmode=require&sslrootcert=/nothing".to_owned(), ["/nothing", "cannot be read"]),
        ("127.0.0.1", format!("sslmode=require&sslrootcert={}", key.display()), ["server.key", "has no authority"]),
    ] {
        of(host, &more).refused("queues", 1, &parts);
    }
}
