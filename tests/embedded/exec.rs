//! `posse exec` and `posse logs ID` in a run on the embedded cluster.

use crate::support::posse::{printed, scripted};

const CONFIG: &str = r#"
app: hands
executors:
- count: 2
  pod:
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - {name: main, image: a, command: [sh, -c, "echo up; exec sleep 600"], env: [{name: WORD, value: w}]}
      - {name: beside, image: a, command: [sleep, "600"]}
"#;

/// What the driver does. Each line that it prints is compared.
const SCRIPT: &str = r#"
posse() { "$POSSE_EXE" "$@"; }
code() { "$@" && echo 0 || echo $?; }
refused() { posse "$@" 2>&1 && exit 9 || true; }
posse wait --running 2 --timeout 120s

posse exec 1 -- sh -c 'echo out; echo error >&2' 2>errors
cat errors
code posse exec 1 -- sh -c 'exit 7'
# The command's flags are its own, also without --.
posse exec hands/2 printf '%s|' -n -i 'a  b' '*'; echo
posse exec --shell 2 'echo $WORD' '| tr w W'
POD=$(posse status -o name | head -n 1)
posse exec "$POD" -c beside -- true

head -c 3000000 /dev/urandom >input
posse exec -i 1 -- cat <input | cmp - input
posse exec -i 1 -- wc -c <input
# More output than input, while both are full.
head -c 300000 /dev/zero | tr '\0' '\n' | posse exec -i 1 -- sed 's/.*/0123456789012345678901234567890123456789/' | wc -c
posse exec 1 -- head -c 20000000 /dev/zero | wc -c
# Who reads no more, on either side.
posse exec 1 -- yes | head -n 1
yes | code posse exec -i 1 -- head -n 1
code posse exec -i 1 -- sh -c 'exec <&-; exit 3' </dev/null
code posse exec -i 1 -- cat </dev/null

refused exec 99 -- true
refused exec no-such-pod -- true
refused exec 1 -c none -- true | sed 's/pod [^ ]*/pod P/'
refused exec 1 -- no-such-program | grep -c 'executable file not found'
refused exec hands/x -- true
refused exec hands/1 --app other -- true
refused exec '' -- true
refused exec 1

posse logs 1
posse logs hands/2
refused logs 99
posse kill --no-replace 1 >/dev/null
n=0
while posse logs 1 >/dev/null 2>&1; do n=$((n + 1)); [ $n -le 600 ] || exit 8; sleep 0.1; done
refused exec 1 -- true
"#;

const WANT: &str = "\
out
error
7
-n|-i|a  b|*|
W
3000000
12300000
20000000
y
y
0
3
0
posse: application hands has no executor 99 now
posse: there is no pod no-such-pod in namespace default
posse: pod P has no container none; it has: main, beside
1
posse: invalid value 'hands/x' for '<ID>': `x` is not the id of an executor; see `posse exec --help`
posse: the argument and --app name different applications
posse: invalid value '' for '<ID>': expected the id of an executor or the name of a pod; see `posse exec --help`
posse: the following required arguments were not provided: <COMMAND>...; see `posse exec --help`
up
up
posse: application hands has no executor 99 now
posse: application hands has no executor 1 now
";

pub fn a_driver_runs_commands_in_its_executors() {
    printed(&scripted(CONFIG, SCRIPT), WANT);
}
