#!/bin/sh
# agenttrace-hook RUNTIME, where no C compiler was found at installation: writes each hook event to the spool,
# from which the collector takes it. It never asks the collector, so no decision can come back this way.
# README.md is the contract; agenttrace_hook.c is the same command in full.

WIRE_VERSION=1
MAX_BODY_BYTES=33554432
SPOOL_MAX_BYTES=268435456
SPOOL_MAX_FILES=10000
SPOOL_BLOCK_BYTES=4096
SPOOL_FULL_TRUSTED_MS=1000
DROPPED_NAMED_BYTES=4194304
DROPPED_MAX_BYTES=8388608

# Whatever goes wrong, also a shell error halfway: the agent sees success. A signal ends the program that is
# reading, if it was sent to the group; what came until then is spooled. A file over the size limit of the
# process must look like a full disk, not like such a signal.
trap 'exit 0' 0
trap : HUP INT QUIT TERM
trap '' XFSZ

export LC_ALL=C
PATH=${PATH-}:/usr/bin:/bin
umask 077
set -f -C

usage() {
    echo 'usage: agenttrace-hook RUNTIME < event.json'
    echo 'Spools one hook event for the AgentTrace collector; agent runtimes start it. RUNTIME: claude_code, codex, hermes ...'
} >&2

runtime=${1-}
if [ "$runtime" = --version ]; then
    echo "agenttrace-hook, wire format $WIRE_VERSION, shell (spools only)" >&2
    exit
fi
if [ "$runtime" = --help ] || [ -t 0 ]; then
    usage
    exit
fi
exec 2>/dev/null
{ true; } 3<&0 || exec </dev/null

# Read even what cannot be kept: a runtime that meets a closed pipe may call the hook broken.
give_up() {
    cat >/dev/null
    exit
}

case $runtime in '' | *[!a-z0-9_-]*) give_up ;; esac
[ ${#runtime} -le 32 ] || give_up

# $1: a setting's text, $2: its default.
number() {
    case $1 in '' | *[!0-9]*) number=$2 ;; *) number=$1 ;; esac
    [ ${#number} -le 18 ] || number=$2
}
number "${AGENTTRACE_SPOOL_MAX_FILES-}" $SPOOL_MAX_FILES
max_files=$number
number "${AGENTTRACE_SPOOL_MAX_BYTES-}" $SPOOL_MAX_BYTES
max_bytes=$number

home=${AGENTTRACE_HOME-}
case $home in
/*) ;;
*)
    home=${HOME-}
    case $home in
    /*) ;;
    *)
        user=$(id -un)
        case $user in '' | [!A-Za-z_]* | *[!A-Za-z0-9._-]*) give_up ;; esac
        eval "home=~$user"
        ;;
    esac
    home=$home/.agenttrace
    ;;
esac

# Only a folder that is ours and no symlink: payloads are raw.
enter() {
    [ -d "$1" ] || mkdir "$1"
    [ ! -h "$1" ] && cd "./$1" && [ -O . ]
}
[ -d "$home" ] || mkdir "$home"
cd "$home/" && enter spool && enter "$runtime" || give_up

# The part of the delivery id that is no time: a UUIDv7 (RFC 9562) with the low 16 bits zero, where the collector
# numbers the events of one delivery.
if read -r random </proc/sys/kernel/random/uuid; then
    random=${random#*-*-}
    c=${random%%-*}
    random=${random#*-}
    random=7${c#?}-${random%????}0000
else
    set -- $(od -An -N8 -tx1 /dev/urandom)
    [ $# -eq 8 ] || give_up
    random=7${1#?}$2-8${3#?}$4-$5$6$7${8}0000
fi
temporary=.tmp.$random

drop() {
    rm -f "$temporary" "$temporary.fifo" "$temporary.sum"
    printf '' >>.dropped
    set -- $(wc -c .dropped)
    if [ "$1" -lt $DROPPED_NAMED_BYTES ]; then
        [ ${#payload} -le 10 ] || payload=9999999999
        printf '%s %010d\n' "$id" "$payload" >>.dropped
    elif [ "$1" -lt $DROPPED_MAX_BYTES ]; then
        printf + >>.dropped
    fi
    exit
}

# dd with fullblock and not head, which may take more from the pipe than it passes on.
head="agenttrace-spool/1 pid=$PPID"
head_bytes=$((${#head} + 1))
hash=1
{
    printf '%s\n' "$head"
    dd bs=32768 count=1025 iflag=fullblock
} >"$temporary"
status=$?

# How long the payload is, when it came, and how full the spool is (see agenttrace_hook.c). This one is counted in
# first, so that of many at once none takes the last place twice. GNU stat answers all of it: each process that is
# started here is a good part of what the agent waits. Where date knows no milliseconds either, they are 000.
printf ' ' >>.files
printf '' >>.blocks
measure() {
    set -- $(stat -c '%s %.3Y' "$temporary" .files .blocks)
    case "$# $2" in
    6\ *.???) now=${2%.*}${2#*.} ;;
    *)
        now=$(date +%s%3N)
        case $now in '' | *[!0-9]*) now=$(date +%s)000 ;; esac
        set -- $(wc -c "$temporary" .files .blocks)
        ;;
    esac
    size=$1 files=$3 blocks=$5
    payload=$((size - head_bytes))
}
measure
if [ $status -eq 1 ] && [ "$payload" -le 0 ]; then
    # A dd that does not know fullblock has read nothing. What head may have taken too much is in no hash.
    hash=
    head -c $((MAX_BODY_BYTES + 32768)) >>"$temporary"
    status=$?
    measure
fi

time= left=$now
while [ ${#time} -lt 12 ]; do
    case $((left & 15)) in
    10) time=a$time ;; 11) time=b$time ;; 12) time=c$time ;; 13) time=d$time ;; 14) time=e$time ;; 15) time=f$time ;;
    *) time=$((left & 15))$time ;;
    esac
    left=$((left >> 4))
done
id=${time%????}-${time#????????}-$random

# 1 is a disk that is full; above 128 a signal cut the reading short, and what came is kept.
if [ $status -eq 1 ]; then
    cat >/dev/null
    drop
fi

if [ "$payload" -gt $MAX_BODY_BYTES ]; then
    whole() {
        tail -c +$((head_bytes + 1)) "$temporary"
        cat
    }
    sum=
    if [ -n "$hash" ] && mkfifo "$temporary.fifo"; then
        { sha256sum || shasum -a 256 || cat >/dev/null; } <"$temporary.fifo" >"$temporary.sum" &
        payload=$(whole | tee "$temporary.fifo" | wc -c)
        wait
        read -r sum rest <"$temporary.sum"
    else
        payload=$(whole | wc -c)
    fi
    payload=$((payload))
    if [ ${#sum} -eq 64 ]; then sum="\"$sum\""; else sum=null; fi
    {
        printf '%s oversized=%s\n' "$head" "$payload"
        printf '{"agenttrace_oversized": {"size_bytes": %s, "sha256": %s}}' "$payload" "$sum"
    } >|"$temporary" || drop
    rm -f "$temporary.fifo" "$temporary.sum"
    set -- $(wc -c "$temporary")
    size=$1
fi

need=$(((size + SPOOL_BLOCK_BYTES - 1) / SPOOL_BLOCK_BYTES))
fits() {
    [ "$1" -le "$max_files" ] && [ $(($2 * SPOOL_BLOCK_BYTES)) -le "$max_bytes" ]
}
if fits "$files" $((blocks + need)); then
    printf "%${need}s" '' >>.blocks
else
    if [ -f .full ] && read -r seen <.full; then
        number "$seen" 0
        age=$((now - number))
        [ $age -lt 0 ] || [ $age -ge $SPOOL_FULL_TRUSTED_MS ] || drop
    fi
    set -- $(ls -lnA | awk -v block=$SPOOL_BLOCK_BYTES '
        $1 !~ /^total/ && ($NF !~ /^\./ || $NF ~ /^\.tmp\./) { files++; blocks += int(($5 + block - 1) / block) }
        END { print files + 0, blocks + 0 }')
    full=
    if ! fits "$1" "$2"; then
        full=1
        printf '%s\n' "$now" >|.full
        set -- $(($1 - 1)) $(($2 - need))
    fi
    printf "%${1}s" '' >|.files
    printf "%${2}s" '' >|.blocks
    [ -z "$full" ] || drop
fi
mv -f "$temporary" "$id" || drop
