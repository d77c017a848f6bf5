//! Database passwords, from the variable and the file that the programs of PostgreSQL use. A URL
//! may not have one, since it would show in every list of processes.

use crate::error::Fault;
use std::fs;
use std::path::{Path, PathBuf};
use waterline_postgres::postgres::Config;
use waterline_postgres::postgres::config::Host;

/// The error for a URL with a password, which it does not repeat.
const IN_URL: &str = "the URL has a password, which everybody sees who lists the processes: set PGPASSWORD, or put a line into a \
                      passfile (~/.pgpass, or the file that PGPASSFILE names): host:port:database:user:password";

/// Sets the password: from the variable, or from the first line of the passfile that matches.
pub(super) fn complete(config: &mut Config, variable: impl Fn(&str) -> Option<String>) -> Result<(), Fault> {
    if config.get_password().is_some() {
        return Err(Fault::new(IN_URL));
    }
    if let Some(password) = variable("PGPASSWORD") {
        config.password(password);
        return Ok(());
    }
    let named = variable("PGPASSFILE").map(PathBuf::from);
    let Some(file) = named.or_else(|| Some(Path::new(&variable("HOME")?).join(".pgpass"))) else { return Ok(()) };
    let Ok(lines) = fs::read_to_string(&file) else { return Ok(()) };
    if let Some(password) = find(&lines, &wanted(config)) {
        // The programs of PostgreSQL ignore such a file, and then report a missing password.
        if is_open_to_others(&file) {
            let file = file.display();
            return Err(Fault::new(format!("the passfile {file} can be read by others: chmod 600 {file}")));
        }
        config.password(password);
    }
    Ok(())
}

/// Returns the host, port, database and user of a connection, in the order of a passfile.
fn wanted(config: &Config) -> [String; 4] {
    let host = match config.get_hosts() {
        [Host::Tcp(host), ..] => host.clone(),
        #[cfg(unix)]
        [Host::Unix(path), ..] => path.display().to_string(),
        [] => String::new(),
    };
    let user = config.get_user().unwrap_or_default();
    let port = config.get_ports().first().copied().unwrap_or(5_432);
    [host, port.to_string(), config.get_dbname().unwrap_or(user).to_owned(), user.to_owned()]
}

/// Returns the password of the first line that matches.
fn find(lines: &str, wanted: &[String; 4]) -> Option<String> {
    let lines = lines.lines().filter(|line| !line.starts_with('#')).map(fields);
    let mut fitting = lines.filter(|fields| {
        fields.len() >= 5 && fields.iter().zip(wanted).all(|(field, wanted)| field == "*" || field == wanted)
    });
    fitting.next().map(|mut fields| fields.swap_remove(4))
}

/// Splits a line into fields. A backslash escapes a colon or a backslash.
fn fields(line: &str) -> Vec<String> {
    let mut fields = vec![String::new()];
    let mut letters = line.chars();
    while let Some(letter) = letters.next() {
        // The password is the rest of the line, and may have colons.
        match letter {
            ':' if fields.len() < 5 => fields.push(String::new()),
            '\\' => fields.last_mut().into_iter().for_each(|field| field.extend(letters.next())),
            other => fields.last_mut().into_iter().for_each(|field| field.push(other)),
        }
    }
    fields
}

#[cfg(unix)]
fn is_open_to_others(file: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    fs::metadata(file).is_ok_and(|found| found.permissions().mode() & 0o077 != 0)
}

#[cfg(not(unix))]
fn is_open_to_others(_file: &Path) -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINES: &str = "# comment:5432:*:*:no\n\
                         db.example:5432:bank:ann:of ann\n\
                         db.example:*:*:bob:a\\:b\\\\c:d\n\
                         short:line\n\
                         *:*:*:*:of all\n";

    fn password(config: &Config) -> Option<String> {
        config.get_password().map(|password| String::from_utf8_lossy(password).into_owned())
    }

    #[test]
    fn the_first_matching_line_has_the_password() {
        let of = |url: &str| find(LINES, &wanted(&url.parse().unwrap()));
        for (url, found) in [
            ("postgres://ann@db.example/bank", "of ann"),
            ("postgres://bob@db.example:7/any", "a:b\\c:d"),
            ("postgres://ann@db.example/other", "of all"),
            ("postgres://ann@elsewhere/bank", "of all"),
        ] {
            assert_eq!(of(url).as_deref(), Some(found), "{url}");
        }
        assert_eq!(
            find("db.example:5432:bank:ann\n", &wanted(&"postgres://ann@db.example/bank".parse().unwrap())),
            None
        );
    }

    #[test]
    fn a_password_comes_from_a_variable_or_file_only() {
        for url in
            ["postgres://ann:s3cret@h/bank", "host=h user=ann password=s3cret", "postgres://ann@h/bank?password=s3cret"]
        {
            let fault = complete(&mut url.parse().unwrap(), |_| None).unwrap_err().to_string();
            assert!(fault.contains("PGPASSWORD") && fault.contains("passfile") && !fault.contains("s3cret"), "{fault}");
        }
        let taken = |variables: &[(&str, String)]| {
            let mut config: Config = "postgres://ann@db.example/bank".parse().unwrap();
            let variable =
                |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.clone());
            complete(&mut config, variable).map(|()| password(&config)).map_err(|fault| fault.to_string())
        };
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join(".pgpass");
        let path = |path: &Path| path.display().to_string();
        assert_eq!(taken(&[("HOME", path(home.path()))]), Ok(None), "there is no file");
        fs::write(&file, LINES).unwrap();
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
            assert!(taken(&[("HOME", path(home.path()))]).is_err_and(|fault| fault.contains("chmod 600")));
            fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        }
        assert_eq!(taken(&[("HOME", path(home.path()))]), Ok(Some("of ann".to_owned())));
        assert_eq!(taken(&[("PGPASSFILE", path(&file))]), Ok(Some("of ann".to_owned())));
        let both = [("PGPASSWORD", "of the variable".to_owned()), ("PGPASSFILE", path(&file))];
        assert_eq!(taken(&both), Ok(Some("of the variable".to_owned())));
    }
}
