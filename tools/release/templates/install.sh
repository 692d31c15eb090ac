#!/bin/sh
# Installs Parley {{.Version}} for this user, without root:
#
#   curl -fsSL {{.URL}}/install.sh | sh
#   sh install.sh --uninstall            # removes it; your data in ~/.a2a-hub stays
#
# PARLEY_INSTALL_DIR  where the programs go (default ~/.local/bin)
# PARLEY_INSTALL_URL  where the archives are (default {{.URL}})
# PARLEY_PUBLIC_KEY   a file with the public key (PEM): the checksums must be signed by it; needs openssl
set -eu

version={{.Version}}
url=${PARLEY_INSTALL_URL:-{{.URL}}}
bin=${PARLEY_INSTALL_DIR:-$HOME/.local/bin}
share=${XDG_DATA_HOME:-$HOME/.local/share}
list=$share/parley/installed

fail() { echo "install.sh: $*" >&2; exit 1; }

# The service that `parley service install` has made of the program goes with it, and so does the hub that it runs.
remove_service() {
  for file in "${XDG_CONFIG_HOME:-$HOME/.config}/systemd/user/parley.service" "$HOME/Library/LaunchAgents/io.github.parleyhub.parley.plist"; do
    if [ -f "$file" ] && grep -Fq -e "$bin/parley" "$file"; then
      "$bin/parley" service uninstall || echo "install.sh: the service is perhaps not removed; see $file" >&2
    fi
  done
}

remove() {
  while IFS= read -r path; do rm -f -- "$path"; done <"$list"
  rm -f -- "$list"
  for dir in "$share/man/man1" "$share/bash-completion/completions" "$share/zsh/site-functions" "$share/fish/vendor_completions.d" \
    "$share/man" "$share/bash-completion" "$share/zsh" "$share/fish" "$share/parley" "$bin" "$share" "$HOME/.local"; do
    rmdir -- "$dir" 2>/dev/null || true # what others use stays
  done
}

fetch() {
  if command -v curl >/dev/null 2>&1; then
    curl -fsSL --retry 2 -o "$work/$1" "$url/$1" || fail "cannot load $url/$1"
  elif command -v wget >/dev/null 2>&1; then
    wget -q -O "$work/$1" "$url/$1" || fail "cannot load $url/$1"
  else
    fail "this needs curl or wget"
  fi
}

digest() {
  if command -v sha256sum >/dev/null 2>&1; then
    sha256sum "$1"
  elif command -v shasum >/dev/null 2>&1; then
    shasum -a 256 "$1"
  else
    fail "this needs sha256sum or shasum"
  fi | cut -d ' ' -f 1
}

# note lists a file before it is there: --uninstall removes it, also if the installation is cut off.
note() {
  echo "$1" >>"$work/installed"
  echo "$1" >>"$list"
}

add() {
  note "$2"
  cp "$1" "$2.new.$$" || { rm -f -- "$2.new.$$"; fail "cannot write $2"; }
  mv -f "$2.new.$$" "$2" # a running hub keeps its old file
}

# tidy removes what an earlier version has installed and this one has not.
tidy() {
  while IFS= read -r path; do
    grep -Fqx -e "$path" "$work/installed" || rm -f -- "$path"
  done <"$list"
  cp "$work/installed" "$list"
}

# main is called by the last line, so that a part of this file does nothing.
main() {
  if [ "${1:-}" = --uninstall ]; then
    [ -f "$list" ] || fail "there is nothing that install.sh has installed"
    remove_service
    remove
    echo "Parley is removed. Its data, if you have used it, is still in ~/.a2a-hub."
    exit 0
  fi
  [ $# = 0 ] || fail "unknown argument $1; there is only --uninstall"

  case $(uname -s) in
    Linux) system=linux ;;
    Darwin) system=darwin ;;
    *) fail "no program for $(uname -s); on Windows use install.ps1" ;;
  esac
  case $(uname -m) in
    x86_64 | amd64) arch=amd64 ;;
    aarch64 | arm64) arch=arm64 ;;
    *) fail "no program for $(uname -m)" ;;
  esac
  name=parley_${version}_${system}_$arch

  work=$(mktemp -d)
  trap 'rm -rf -- "$work"' EXIT
  trap 'exit 1' HUP INT TERM

  fetch SHA256SUMS
  if [ -n "${PARLEY_PUBLIC_KEY:-}" ]; then
    fetch SHA256SUMS.sig
    openssl pkeyutl -verify -pubin -inkey "$PARLEY_PUBLIC_KEY" -rawin -in "$work/SHA256SUMS" -sigfile "$work/SHA256SUMS.sig" >/dev/null ||
      fail "the checksums are not signed with $PARLEY_PUBLIC_KEY"
  fi
  fetch "$name.tar.gz"
  want=$(grep "  $name.tar.gz\$" "$work/SHA256SUMS" | cut -d ' ' -f 1)
  [ -n "$want" ] || fail "SHA256SUMS does not have $name.tar.gz"
  [ "$(digest "$work/$name.tar.gz")" = "$want" ] || fail "$name.tar.gz is not what SHA256SUMS says: nothing is installed"
  tar -xzf "$work/$name.tar.gz" -C "$work"
  from=$work/$name

  mkdir -p "$bin" "$share/parley" "$share/man/man1" "$share/bash-completion/completions" "$share/zsh/site-functions" "$share/fish/vendor_completions.d"
  add "$from/parley" "$bin/parley"
  for other in a2a-hub nats-mcp-server; do
    note "$bin/$other"
    ln -sf parley "$bin/$other"
  done
  for page in "$from"/man/*.1; do add "$page" "$share/man/man1/${page##*/}"; done
  for program in parley a2a-hub; do
    add "$from/completions/$program.bash" "$share/bash-completion/completions/$program"
    add "$from/completions/$program.zsh" "$share/zsh/site-functions/_$program"
    add "$from/completions/$program.fish" "$share/fish/vendor_completions.d/$program.fish"
  done
  add "$from/NOTICE" "$share/parley/NOTICE"
  tidy

  echo "Parley $version is in $bin."
  case :$PATH: in
    *:"$bin":*) ;;
    *) echo "Put it in your PATH: export PATH=\"$bin:\$PATH\"" ;;
  esac
  echo "Next: parley send echo \"hello\""
}

main "$@"
