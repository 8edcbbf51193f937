#!/bin/sh
# with-users.sh FILE COMMAND...: writes the users of mosquitto to FILE, with hashes of their passwords, and becomes the
# command. The password comes from the environment and is never an argument, which others on the machine could read.
set -eu
file=$1
shift
(
    umask 077
    printf 'router:%s\n' "$PASSWORD_MQTT" >"$file"
    mosquitto_passwd -U "$file"
)
exec "$@"
