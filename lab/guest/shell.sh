# Words for scripts of guests. Known to each: LAB_NAME, LAB_NUMBER (1, 2, ...), LAB_NAMES, LAB_TREE (the source tree).
. /lab/words
cd "$LAB_TREE" || exit 1

# tell NAME [TEXT] and await NAME [SECONDS]: what one guest says, another waits for (and prints).
tell() {
    echo "${2:-}" >"/shared/.$1.draft" && mv "/shared/.$1.draft" "/shared/$1"
}
await() {
    local tries=$((${2:-60} * 20))
    until [ -e "/shared/$1" ]; do
        tries=$((tries - 1))
        if [ $tries -le 0 ]; then
            echo "await: nobody told $1"
            return 1
        fi
        sleep 0.05
    done
    cat "/shared/$1"
}

# meet NAME: returns when every guest has come to it.
meet() {
    local name
    tell "$1.$LAB_NAME"
    for name in $LAB_NAMES; do await "$1.$name" "${2:-60}" >/dev/null || return 1; done
}

# network_up [CARD [NET]]: gives a card the address 10.0.NET.LAB_NUMBER.
network_up() {
    local card=${1:-eth0} net=${2:-0}
    ip link set lo up
    ip link set "$card" mtu 4200 up && ip address add "10.0.$net.$LAB_NUMBER/24" dev "$card"
}

# rxe_up [DEVICE [CARD]]: a soft-RoCE device on a card that is up; returns when its addresses are known.
rxe_up() {
    local device=${1:-rxe0} tries=100
    rdma link add "$device" type rxe netdev "${2:-eth0}" || return 1
    until grep -q "10\|0a" "/sys/class/infiniband/$device/ports/1/gids/1" 2>/dev/null; do
        tries=$((tries - 1))
        [ $tries -gt 0 ] || return 1
        sleep 0.05
    done
}

# expect WORDS COMMAND...: runs it and says whether it went well; the script ends in `tested`.
LAB_GOOD=0 LAB_BAD=0
expect() {
    local words=$1 output
    shift
    if output=$("$@" 2>&1); then
        LAB_GOOD=$((LAB_GOOD + 1))
        echo "ok    $words"
    else
        LAB_BAD=$((LAB_BAD + 1))
        printf 'WRONG %s\n%s\n' "$words" "$output"
    fi
}
tested() {
    echo "$LAB_GOOD right, $LAB_BAD wrong"
    exit $((LAB_BAD > 0))
}
