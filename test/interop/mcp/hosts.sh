#!/bin/sh
# Two computers, alpha and beta, on one: each has a network namespace of its own with
# one link, to the place where the NATS server is. Run it in new user, network and
# mount namespaces; its arguments are what runs between the two.
set -eu
mount -t tmpfs none /run
mkdir /run/netns
ip link set lo up
subnet=1
for host in alpha beta; do
	ip netns add $host
	ip link add name $host type veth peer name eth0 netns $host
	ip address add 10.97.$subnet.1/30 dev $host
	ip link set $host up
	ip -n $host link set lo up
	ip -n $host address add 10.97.$subnet.2/30 dev eth0
	ip -n $host link set eth0 up
	subnet=$((subnet + 1))
done
nats-server -js -a 0.0.0.0 -p 4222 -sd "$NATS_STORE" -c "$NATS_CONFIG" &
server=$!
trap 'kill $server && wait $server' EXIT
"$@"
