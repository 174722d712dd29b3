//! WebSockets against servers that answer well, refuse, send garbage, or go away.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;

use tungstenite::handshake::server::{Request, Response};
use tungstenite::{Message, WebSocket, accept_hdr};

use crate::api::pod_exec::{ContainerPath, ExecError, Input, Output, RemoteTerminal, exec};
use crate::testing::plain_client;
use posse_wire::k8s::exec_channels::{CommandEnd, TerminalSize};

/// Serves one connection with `serve`, then, for the refusal's text, one plain request.
fn run(
    serve: impl FnOnce(TcpStream) + Send + 'static,
    plain: &'static str,
    input: Input<'_>,
) -> (Result<CommandEnd, ExecError>, String) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let server = thread::spawn(move || {
        serve(listener.accept().unwrap().0);
        if !plain.is_empty() {
            let (mut stream, _) = listener.accept().unwrap();
            read_head(&mut stream);
            stream.write_all(plain.as_bytes()).unwrap();
        }
    });
    let target = ContainerPath { namespace: "n".into(), pod: "p".into(), container: "c d".into() };
    let mut said = String::new();
    let mut each = |output: Output<'_>| {
        let (name, bytes) = match output {
            Output::Stdout(bytes) => ("out", bytes),
            Output::Stderr(bytes) => ("err", bytes),
        };
        said.push_str(&format!("{name}:{};", String::from_utf8_lossy(bytes)));
        Ok(())
    };
    let command = ["posse".to_owned(), "a b&c".to_owned()];
    let result = exec(&plain_client(address), &target, &command, input, &mut each);
    server.join().unwrap();
    (result, said)
}

fn read_head(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).unwrap() > 0 {
        head.push(byte[0]);
    }
    String::from_utf8(head).unwrap()
}

#[test]
fn a_command_that_no_url_holds_is_told() {
    let target = ContainerPath { namespace: "n".into(), pod: "p".into(), container: "c".into() };
    let http = plain_client("127.0.0.1:1".parse().unwrap());
    let script = " ".repeat(22_000);
    let error = exec(&http, &target, &[script], Input::default(), &mut |_| Ok(()));
    let said = format!("{error:?}");
    assert!(said.contains("let a shell read it from its standard input"), "{said}");
}

/// Accepts the handshake as a kubelet does.
fn accept(stream: TcpStream) -> WebSocket<TcpStream> {
    accept_as(stream, "container=c%20d&stdout=true&stderr=true", "v4.channel.k8s.io")
}

/// The query without the command, and the protocol that is chosen.
fn accept_as(stream: TcpStream, query: &str, chosen: &'static str) -> WebSocket<TcpStream> {
    #[expect(clippy::result_large_err, reason = "the type of tungstenite's callback")]
    let answer = |request: &Request, mut response: Response| {
        let path = request.uri().to_string();
        let exec = "/api/v1/namespaces/n/pods/p/exec";
        assert_eq!(path, format!("{exec}?{query}&command=posse&command=a%20b%26c"));
        let offered = request.headers()["sec-websocket-protocol"].to_str().unwrap();
        assert_eq!(offered, "v5.channel.k8s.io, v4.channel.k8s.io");
        response.headers_mut().insert("sec-websocket-protocol", chosen.parse().unwrap());
        Ok(response)
    };
    accept_hdr(stream, answer).unwrap()
}

fn binary(bytes: &'static [u8]) -> Message {
    Message::Binary(bytes.into())
}

#[test]
fn output_and_exit_code_are_passed_on() {
    let status = br#"
{"status":"Failure","reason":"NonZeroExitCode",
 "details":{"causes":[{"reason":"ExitCode","message":"3"}]}}"#;
    let messages = [
        binary(b"\x01"),
        binary(b"\x02"),
        Message::Ping("are you there".into()),
        binary(b"\x01hello"),
        binary(b"\x02oh"),
        binary(b"\x09what is this"),
        binary(b""),
        Message::Binary([&[3][..], status].concat().into()),
    ];
    let (result, said) = run(
        |stream| {
            let mut socket = accept(stream);
            messages.into_iter().for_each(|message| socket.send(message).unwrap());
            // Until the client closes.
            while socket.read().is_ok() {}
        },
        "",
        Input::default(),
    );
    assert_eq!((result.unwrap(), said.as_str()), (CommandEnd::Exited(3), "out:hello;err:oh;"));
}

#[test]
fn a_connection_that_ends_early_is_an_error() {
    for messages in [vec![binary(b"\x01half")], vec![binary(b"\x01half"), Message::Close(None)]] {
        let (result, said) = run(
            move |stream| {
                let cut = stream.try_clone().unwrap();
                let mut socket = accept(stream);
                messages.into_iter().for_each(|message| socket.send(message).unwrap());
                let _ = cut.shutdown(std::net::Shutdown::Write);
            },
            "",
            Input::default(),
        );
        assert!(matches!(&result, Err(ExecError::Cut(_))), "{result:?}");
        assert_eq!(said, "out:half;");
    }
}

#[test]
fn garbage_is_an_error() {
    let (result, _) = run(
        |mut stream| {
            let head = read_head(&mut stream);
            let key = head.lines().find_map(|line| line.strip_prefix("Sec-WebSocket-Key: "));
            let accept = tungstenite::handshake::derive_accept_key(key.unwrap().as_bytes());
            let answer = format!(
                "HTTP/1.1 101 x\r\nupgrade: websocket\r\nconnection: Upgrade\r\n\
                 sec-websocket-protocol: v5.channel.k8s.io\r\nsec-websocket-accept: {accept}\r\n\r\n"
            );
            stream.write_all(answer.as_bytes()).unwrap();
            // A frame of 2^63 bytes.
            let frame = [&[0x82, 127][..], &(1_u64 << 63).to_be_bytes(), &[7; 4096]].concat();
            let _ = stream.write_all(&frame);
            let _ = io::copy(&mut stream, &mut io::sink());
        },
        "",
        Input::default(),
    );
    assert!(matches!(&result, Err(ExecError::Cut(_))), "{result:?}");
    let (result, _) = run(
        |mut stream| {
            read_head(&mut stream);
            stream.write_all(b"SSH-2.0-x\r\n\r\n").unwrap();
        },
        "",
        Input::default(),
    );
    let Err(ExecError::Refused(refusal)) = result else { panic!("{result:?}") };
    assert_eq!(refusal.code, 0, "{refusal}");
}

#[test]
fn a_refusal_has_the_servers_words() {
    let (result, _) = run(
        |mut stream| {
            read_head(&mut stream);
            stream.write_all(b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n").unwrap();
        },
        "HTTP/1.1 403 Forbidden\r\nconnection: close\r\ncontent-type: application/json\r\n\
         content-length: 85\r\n\r\n\
         {\"kind\":\"Status\",\"status\":\"Failure\",\"message\":\"no exec for you\",\"reason\":\"Forbidden\"}",
        Input::default(),
    );
    let Err(ExecError::Refused(refusal)) = result else { panic!("{result:?}") };
    assert_eq!(refusal.to_string(), "no exec for you (403)");
}

/// Reads messages until this one comes.
fn read_until(socket: &mut WebSocket<TcpStream>, last: &[u8]) -> Vec<u8> {
    let mut all = Vec::new();
    loop {
        let bytes = socket.read().unwrap().into_data();
        if bytes == last {
            return all;
        }
        all.extend(bytes.split_first().unwrap().1);
    }
}

const DONE: &[u8] = b"\x03{\"status\":\"Success\"}";

#[test]
fn input_is_passed_on_with_its_end() {
    let (read, mut write) = io::pipe().unwrap();
    let text = b"0123456789".repeat(2_000);
    let sent = text.clone();
    let writer = thread::spawn(move || write.write_all(&text).unwrap());
    let input = Input { stdin: Some(read.into()), terminal: None };
    let (result, said) = run(
        move |stream| {
            let query = "container=c%20d&stdin=true&stdout=true&stderr=true";
            let mut socket = accept_as(stream, query, "v5.channel.k8s.io");
            assert_eq!(read_until(&mut socket, &[255, 0]), sent);
            socket.send(binary(b"\x01all")).unwrap();
            socket.send(binary(DONE)).unwrap();
            while socket.read().is_ok() {}
        },
        "",
        input,
    );
    writer.join().unwrap();
    assert_eq!((result.unwrap(), said.as_str()), (CommandEnd::Exited(0), "out:all;"));
}

/// The server takes no input before all of its output was taken: a client that blocks in a write hangs.
#[test]
fn output_is_read_while_the_peer_takes_no_input() {
    let (read, mut write) = io::pipe().unwrap();
    // Ends with an error when the command has ended.
    let writer = thread::spawn(move || while write.write_all(&[7; 4096]).is_ok() {});
    let input = Input { stdin: Some(read.into()), terminal: None };
    let (result, said) = run(
        |stream| {
            let query = "container=c%20d&stdin=true&stdout=true&stderr=true";
            let mut socket = accept_as(stream, query, "v5.channel.k8s.io");
            for _ in 0..300 {
                socket.send(Message::Binary([&[1][..], &[b'x'; 30_000]].concat().into())).unwrap();
            }
            socket.send(binary(DONE)).unwrap();
            while socket.read().is_ok() {}
        },
        "",
        input,
    );
    assert_eq!(result.unwrap(), CommandEnd::Exited(0));
    writer.join().unwrap();
    assert_eq!(said.matches('x').count(), 300 * 30_000);
}

#[test]
fn a_terminal_has_a_size_and_one_output() {
    struct Terminal;
    impl RemoteTerminal for Terminal {
        fn size(&self) -> Option<TerminalSize> {
            Some(TerminalSize { columns: 100, rows: 40 })
        }
        fn is_stopped(&self) -> bool {
            false
        }
    }
    let input = Input { stdin: None, terminal: Some(&Terminal) };
    let (result, _) = run(
        |stream| {
            let query = "container=c%20d&stdout=true&tty=true";
            let mut socket = accept_as(stream, query, "v4.channel.k8s.io");
            let size = b"\x04{\"Width\":100,\"Height\":40}";
            assert_eq!(socket.read().unwrap(), binary(size));
            socket.send(binary(DONE)).unwrap();
            // Sent once.
            while let Ok(message) = socket.read() {
                assert!(message.is_close(), "{message:?}");
            }
        },
        "",
        input,
    );
    assert_eq!(result.unwrap(), CommandEnd::Exited(0));
}
