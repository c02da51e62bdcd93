#!/usr/bin/env bash
# Start and stop a Kafka broker on this machine: one process as broker and controller (KRaft).
set -euo pipefail
scripts=$(cd "$(dirname "$0")" && pwd)
pom=$scripts/kafka/pom.xml

help() {
  cat <<'END'
kafka.sh: one Kafka broker on this machine, for trying things out and for tests.

  scripts/kafka.sh start DIR [PORT]   start it with its data in DIR, and print its address once it answers
  scripts/kafka.sh stop DIR           stop it, and wait until it is gone
  scripts/kafka.sh kill DIR           end it with SIGKILL, as a crash would
  scripts/kafka.sh status DIR         print its address if it answers
  scripts/kafka.sh fetch              only download what it needs

A first try:

  address=$(scripts/kafka.sh start /tmp/broker)    # 127.0.0.1:23941, say
  …                                                # topics come to be when they are first written to
  scripts/kafka.sh stop /tmp/broker
  rm -r /tmp/broker

Without PORT it takes the port it had in this DIR, or else a free one. Started again with the same DIR, it has its
topics and their events again, after stop and after kill. It listens on 127.0.0.1 only.

DIR holds data/ (the topics), server.properties, kafka.log and kafka.pid. The broker itself (45 MB) comes through
Maven once and is then kept in ${XDG_CACHE_HOME:-~/.cache}/tocsin; later starts need no network.
Java 17 or newer is needed, and Maven for the first start.

Exit codes: 0 done; 1 it went wrong, or (status) it does not answer; 2 a wrong command; 3 the broker cannot be
downloaded, because Maven is missing or reaches no repository.
END
}

fail() { # code, message
  echo "kafka.sh: $2" >&2
  exit "$1"
}

jars() { # the folder with the broker's jars; downloads them if they are not there
  local cache folder fresh
  cache=${XDG_CACHE_HOME:-$HOME/.cache}/tocsin
  # Named after what the pom says, so that a new pom has a new folder.
  folder=$cache/kafka-$(cksum <"$pom" | cut -d ' ' -f 1)
  if [ ! -d "$folder" ]; then
    command -v mvn >/dev/null || fail 3 "the broker comes through Maven, and there is no mvn (sudo apt-get install maven)"
    mkdir -p "$cache"
    fresh=$(mktemp -d "$cache/kafka.XXXXXX")
    # -U: retry artifacts that were missing before.
    if ! mvn -B -ntp -q -U -f "$pom" -Daether.connector.connectTimeout=20000 -Daether.connector.requestTimeout=60000 \
      dependency:copy-dependencies -DoutputDirectory="$fresh" >"$fresh/maven.log" 2>&1; then
      sed -n '/ERROR/{s/.*\[ERROR\] *//;p;q;}' "$fresh/maven.log" >&2
      rm -r "$fresh"
      fail 3 "Maven cannot get the broker from its repositories; its own words are above"
    fi
    rm "$fresh/maven.log"
    # If another start was quicker, keep its folder and remove this one.
    mv "$fresh" "$folder" 2>/dev/null || true
    rm -rf "$fresh" "${folder:?}/$(basename "$fresh")"
  fi
  echo "$folder"
}

process() { # the id of the broker of $dir; fails if it does not run
  local pid
  pid=$(cat "$dir/kafka.pid" 2>/dev/null) || return 1
  # The process id may be reused by now; the broker has its folder in its command line.
  ps -ww -p "$pid" -o args= 2>/dev/null | grep -qF -- "-Dtocsin.kafka=$dir " || return 1
  echo "$pid"
}

address() { # of the broker of $dir; nothing if it never started
  [ ! -e "$dir/server.properties" ] || sed -n 's|^advertised.listeners=PLAINTEXT://||p' "$dir/server.properties"
}

taken() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

free_port() { # below the ports that outgoing connections get, so that it is still free when the broker starts again
  local port
  for _ in {1..100}; do
    port=$((20000 + RANDOM % 12000))
    taken "$port" || { echo "$port"; return; }
  done
  fail 1 "no free port between 20000 and 32000"
}

answers() { # whether Kafka answers at $1: an ApiVersions request, version 0, whose answer begins with length and "Tocs"
  local reply
  {
    printf '\0\0\0\012\0\022\0\0Tocs\377\377' >&3
    # Bash drops zero bytes.
    LC_ALL=C IFS='' read -r -t 2 -d $'\377' -n 8 -u 3 reply
  } 2>/dev/null 3<>"/dev/tcp/${1%:*}/${1##*:}" && [[ $reply == *Tocs* ]]
}

configure() { # port, controller's port
  cat >"$dir/server.properties" <<END
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:$2
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://127.0.0.1:$1,CONTROLLER://127.0.0.1:$2
advertised.listeners=PLAINTEXT://127.0.0.1:$1
log.dirs=$dir/data
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
share.coordinator.state.topic.num.partitions=1
group.initial.rebalance.delay.ms=0
num.network.threads=1
num.io.threads=2
log.cleaner.dedupe.buffer.size=4194304
# After a crash the controller accepts the broker again only after its old session has expired.
broker.session.timeout.ms=3000
broker.heartbeat.interval.ms=500
END
}

java_here() { # runs the broker's Java with the broker's jars
  exec "$java" -Xmx512m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Dorg.apache.logging.log4j.level=WARN \
    "-Dtocsin.kafka=$dir" -cp "$jars/*" "$@"
}

start() { # [port]
  local pid jars java port
  if pid=$(process); then
    [ -z "${1-}" ] || [ "127.0.0.1:$1" = "$(address)" ] || fail 1 "it runs already, at $(address)"
    wait_until_it_answers "$pid"
    return
  fi
  java=$("$scripts/java.sh")/bin/java
  jars=$(jars)
  port=${1-}
  [ -n "$port" ] || { port=$(address); port=${port##*:}; }
  [ -n "$port" ] || port=$(free_port)
  for _ in {1..50}; do  # a broker that was killed may still be on its way out
    taken "$port" || break
    sleep 0.1
  done
  ! taken "$port" || fail 1 "port $port is taken"
  configure "$port" "$(free_port)"
  if [ ! -e "$dir/data/meta.properties" ]; then
    # The name of the cluster is any 16 bytes in base64.
    (java_here kafka.tools.StorageTool format -t VG9jc2luLWZvci10ZXN0cw -c "$dir/server.properties") >"$dir/kafka.log" 2>&1 ||
      fail 1 "the data folder cannot be made; see $dir/kafka.log"
  fi
  (java_here kafka.Kafka "$dir/server.properties") >>"$dir/kafka.log" 2>&1 </dev/null &
  pid=$!
  echo "$pid" >"$dir/kafka.pid"
  wait_until_it_answers "$pid"
}

wait_until_it_answers() { # process id
  for _ in {1..600}; do
    kill -0 "$1" 2>/dev/null || fail 1 "the broker ended at once; see $dir/kafka.log"
    if answers "$(address)"; then
      address
      return
    fi
    sleep 0.2
  done
  kill -KILL "$1"
  fail 1 "the broker does not answer, and has been ended; see $dir/kafka.log"
}

stop() { # signal
  local pid
  if pid=$(process); then
    kill "-$1" "$pid"
    for _ in {1..300}; do
      process >/dev/null || break
      sleep 0.1
    done
    ! process >/dev/null || fail 1 "process $pid does not stop; kafka.sh kill $dir ends it"
  fi
  rm -f "$dir/kafka.pid"
}

command=${1-}
case $command in
  help | -h | --help) help; exit ;;
  fetch) [ $# -eq 1 ] || fail 2 "fetch takes nothing; kafka.sh --help says more"; jars >/dev/null; exit ;;
  start) [ $# -eq 2 ] || [ $# -eq 3 ] || fail 2 "start takes a folder and perhaps a port; kafka.sh --help says more" ;;
  stop | kill | status) [ $# -eq 2 ] || fail 2 "$command takes a folder; kafka.sh --help says more" ;;
  *) fail 2 "which command: start, stop, kill, status or fetch? kafka.sh --help says more" ;;
esac
[[ ${3-1} =~ ^[1-9][0-9]{0,4}$ ]] || fail 2 "'$3' is no port"
[ "$command" != start ] || mkdir -p "$2"
dir=$(cd "$2" 2>/dev/null && pwd) || fail 1 "there is no folder $2"

case $command in
  start) start "${3-}" ;;
  stop) stop TERM ;;
  kill) stop KILL ;;
  status)
    pid=$(process) || fail 1 "it does not run"
    answers "$(address)" || fail 1 "process $pid runs, but does not answer at $(address)"
    address
    ;;
esac
