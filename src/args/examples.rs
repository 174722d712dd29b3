//! What follows the flags in the help texts: examples, exit codes, environment.

/// Examples, and the exit codes of a command that has none of its own.
macro_rules! with_codes {
    ($examples:literal) => {
        concat!(
            $examples,
            "\n\nExit codes:\n  0  done\n  1  failed\n  2  wrong arguments or files\n",
            "  3  the API server does not answer or permit"
        )
    };
}

pub const POSSE: &str = "\
Examples:
  posse init                          write a posse.yaml with comments
  posse run --dev -f posse.yaml -- ./driver.py
                                      try a driver without a cluster
  posse status                        see what its executors do

-n, --kubeconfig and --context may also stand before the command.

Environment:
  KUBECONFIG   the kubeconfig, if no flag names one; it comes before a pod's service account
  POSSE_LOG    log level on stderr: error, warn, info (default), debug, trace,
               or module=level pairs
  POSSE_CONTROL, POSSE_CONTROL_TOKEN_FILE
               the run's control API, for status, scale, kill, events, explain,
               exec, wait, idle, ready

Exit codes:
  0  done
  1  failed
  2  wrong arguments or files
  3  the API server does not answer or permit
  `posse run --help` has the others.";

#[cfg(target_os = "linux")]
pub const RUN: &str = "\
Examples:
  posse run --dev -f posse.yaml -- ./driver.py
  posse run -n analytics --executors 20 -- spark-submit app.py
  generate-config | posse run -f - -- ./driver.py

Exit codes:
  the driver's own, or 128 + the signal that ended it; else
  0  the run went well
  1  this machine failed: a thread or a signal handler
  2  wrong arguments, configuration, template or kubeconfig
  3  the API server does not answer or permit; another live posse holds the instance
  4  the server refuses a template
  11 more executors were lost than a failure budget allows, or a group cannot run
  12 executors were not confirmed deleted; they are named
  13 another posse took over
  14 the driver made no call for driver.silence
  130 Ctrl-C before the run began";

pub const CLEANUP: &str = "\
Examples:
  posse cleanup --app wordcount                list what is left
  posse cleanup --app wordcount --yes          delete it
  posse cleanup --all-apps --stale 1h -n analytics";

pub const SUBMIT: &str = "\
Examples:
  posse submit -f posse.yaml -n analytics --create-rbac
  posse submit --no-wait -- python3 driver.py
  posse submit --dry-run                       let the server check it, create nothing

Exit codes:
  the driver's own after its last try
  130  Ctrl-C, which does not stop the application
  else as `posse run --help` lists them";

pub const APPS: &str = with_codes!(
    "\
Examples:
  posse apps -n analytics
  posse apps -A -o wide
  posse apps 'nightly-*' -o name | xargs posse stop"
);

pub const LOGS: &str = "\
Examples:
  posse logs wordcount -f                      the driver's log, until it ends
  posse logs wordcount 3 --tail 50             executor 3
  posse logs wordcount --executors             all executors, each line with its name";

pub const EXEC: &str = "\
Examples:
  posse exec 3 -it -- sh                       a shell in executor 3 of the only run here
  posse exec wordcount/3 -- ps aux             the application by its name
  posse exec 3 -i -- tee /tmp/in < data.csv    stdin goes to the command

Exit codes:
  the command's own; else
  1  the command cannot run there, or its end is not known
  2  wrong arguments";

pub const STOP: &str = with_codes!(
    "\
Examples:
  posse stop wordcount                         a run on this host, else in the cluster
  posse stop wordcount -n analytics
  posse stop 'nightly-*' --grace 5s
  posse stop wordcount --context staging"
);

pub const STATUS: &str = with_codes!(
    "\
Examples:
  posse status                                 the only run on this host
  watch posse status wordcount                 again and again
  posse status -o json | jq '.groups[].running'"
);

pub const SCALE: &str = with_codes!(
    "\
Examples:
  posse scale 5                                the only group of the only run
  posse scale wordcount 20 --group big
  posse scale wordcount 0 -n analytics"
);

pub const KILL: &str = with_codes!(
    "\
Examples:
  posse kill 2                                 another executor takes its place
  posse kill wordcount 2 5 --no-replace        lower the target by two
  posse kill 7 --force --reason 'stuck in GC'"
);

pub const EVENTS: &str = with_codes!(
    "\
Examples:
  posse events                                 a table
  posse events --follow -o json                one JSON object per line, until the run ends
  posse events -o name | sort | uniq -c"
);

pub const EXPLAIN: &str = with_codes!(
    "\
Examples:
  posse explain                                what every group waits for
  posse explain 3 --logs 20                    what happened to executor 3
  posse explain wordcount -o json"
);

pub const READY: &str = with_codes!(
    "\
Examples:
  posse ready                                  in the driver's script
  posse ready wordcount                        from elsewhere"
);

pub const IDLE: &str = with_codes!(
    "\
Examples:
  posse idle 3 4                               3 and 4 have no work, all others do
  posse idle                                   all executors work
  while sleep 5; do posse idle $(free); done   say it again before 10 s are over"
);

pub const TASK: &str = "\
Examples:
  posse task add --name sim-3 --cpu 4 --retries 2 -- ./sim 3
  posse task list -o wide
  posse task wait sim-3 && posse task logs sim-3";

pub const TASK_ADD: &str = with_codes!(
    "\
Examples:
  posse task add --name sim --array 1-100%20 -- sh -c './sim $POSSE_TASK_INDEX'
  posse task add --app wordcount --name mean --after sim --memory 2Gi -- ./mean"
);

pub const TASK_LIST: &str = with_codes!(
    "\
Examples:
  posse task list --app wordcount -o wide"
);

pub const TASK_WAIT: &str = "\
Examples:
  posse task wait --app wordcount sim-1 sim-2 --timeout 1h

Exit codes:
  0  all have succeeded
  1  the time is over, or one was cancelled or skipped
  2  wrong arguments
  3  the API server does not answer or permit
  else that of the first task that failed";

pub const TASK_LOGS: &str = with_codes!(
    "\
Examples:
  posse task logs --app wordcount sim-1 -f"
);

pub const TASK_CANCEL: &str = with_codes!(
    "\
Examples:
  posse task cancel --app wordcount sim-1 sim-2"
);

pub const TASK_RETRY: &str = with_codes!(
    "\
Examples:
  posse task retry --app wordcount sim-1"
);

pub const WAIT: &str = "\
Examples:
  posse wait --running 4 && mpirun ...         in the driver's script
  posse wait --running 1 --group gpu --timeout 10m
  posse wait wordcount --running 20
  posse wait --ready 4                         their readiness probes have succeeded, too

Exit codes:
  0  so many run, or are ready
  1  the time is over, or the run has ended";
