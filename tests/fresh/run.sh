#!/bin/sh
# Runs ./dev in a minimal Debian with nothing installed, to prove that it brings all it needs.
#
# usage: ./dev fresh [--user] [--keep] COMMAND…      e.g. ./dev fresh test; ./dev fresh --user demo
#   --user   as an ordinary user with sudo instead of as root
#   --keep   go on in the system of the last run instead of a new one
# Needs root, and the network as apt has it configured here. It clones what is committed, into a path with a
# space, and runs with CI=true and no terminal. FRESH_DIR (/var/tmp/millrace-fresh) holds the systems,
# FRESH_SUITE (bookworm) and FRESH_MIRROR (what apt uses here) say which Debian.
set -eu

dir=${FRESH_DIR:-/var/tmp/millrace-fresh}
suite=${FRESH_SUITE:-bookworm}
source=$(CDPATH='' cd -- "$(dirname -- "$0")/../.." && pwd)
user=root
keep=no
while [ $# -gt 0 ]; do
    case $1 in
    --user) user=dev ;;
    --keep) keep=yes ;;
    *) break ;;
    esac
    shift
done
[ $# -gt 0 ] || set -- build
[ "$(id -u)" -eq 0 ] || {
    echo "fresh: needs root (chroot and mounts)" >&2
    exit 1
}

sources() { # the Debian archives that apt knows here, as lines of a sources.list
    # shellcheck disable=SC2016 # these are for apt to expand
    apt-get indextargets --format 'deb $(REPO_URI) $(RELEASE) $(COMPONENT)' \
        'Created-By: Packages' 'Origin: Debian' | grep " $suite" | sort -u
}
proxy=$(apt-config shell proxy Acquire::http::Proxy | sed "s/^proxy='\(.*\)'$/\1/")
[ -z "$proxy" ] || export http_proxy="$proxy"

if [ ! -e "$dir/base/etc/debian_version" ]; then
    mirror=${FRESH_MIRROR:-$(sources | sed -n "s/^deb \([^ ]*\) $suite main$/\1/p" | head -n 1)}
    [ -n "$mirror" ] || {
        echo "fresh: apt knows no archive of $suite here: set FRESH_MIRROR" >&2
        exit 1
    }
    mkdir -p "$dir"
    rm -rf "$dir/base.part"
    debootstrap --variant=minbase "$suite" "$dir/base.part" "$mirror" >"$dir/debootstrap.log"
    mv "$dir/base.part" "$dir/base"
fi

system=$dir/system
if [ "$keep" = no ] || [ ! -d "$system" ]; then
    rm -rf --one-file-system "$system"
    cp -a --reflink=auto "$dir/base" "$system"
    [ -n "${FRESH_MIRROR:-}" ] || sources >"$system/etc/apt/sources.list"
    [ -z "$proxy" ] || echo "Acquire::http::Proxy \"$proxy\";" >"$system/etc/apt/apt.conf.d/proxy"
    cp /etc/resolv.conf /etc/hosts "$system/etc/"
fi
rm -rf "$system/srv/mill race"
git -c safe.directory='*' clone --quiet "$source" "$system/srv/mill race"

cat >"$system/srv/inside.sh" <<'INSIDE'
# Inside the new system: $1 is the user, the rest is for ./dev.
user=$1
shift
if [ "$user" != root ]; then
    if ! command -v sudo >/dev/null; then
        apt-get -qq update && apt-get -qq install -y --no-install-recommends sudo >/dev/null 2>&1
        useradd --create-home "$user"
        echo "$user ALL=(ALL) NOPASSWD: ALL" >/etc/sudoers.d/fresh
    fi
    chown -R "$user" "/srv/mill race"
fi
cd /
exec setpriv --reuid="$user" --regid="$user" --init-groups \
    env HOME="$(getent passwd "$user" | cut -d: -f6)" USER="$user" "/srv/mill race/dev" "$@"
INSIDE

# Namespaces of its own: all mounts and every process that is left go with it.
# shellcheck disable=SC2016 # expanded by the inner shell
exec unshare --mount --pid --fork --kill-child sh -c '
    system=$1
    shift
    mount -t proc proc "$system/proc"
    mount --rbind /dev "$system/dev"
    mount -t tmpfs tmpfs "$system/dev/shm"
    # Not exec: this shell is process 1 in there and must reap orphans, as an init does.
    env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 CI=true \
        ${http_proxy:+http_proxy="$http_proxy"} chroot "$system" sh /srv/inside.sh "$@" </dev/null
    exit $?
' sh "$system" "$user" "$@"
