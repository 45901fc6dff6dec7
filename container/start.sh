#!/bin/sh
# The first process of the image. A broker or a name server gets a super user at its first start, whose
# secret is in $AEROBEE_CREDENTIALS_FILE: brokers sign requests to each other with it, and so do the SDK
# and the command in this container. Access control is on unless you have set it.
set -eu
file=$AEROBEE_CREDENTIALS_FILE
case "${1:-}" in
broker | namesrv)
    mkdir -p "$(dirname "$file")"
    if [ ! -s "$file" ]; then
        umask 077
        python3 -c 'import json, secrets
print(json.dumps({"accessKey": "root", "secretKey": secrets.token_urlsafe(32)}))' >"$file.$$"
        # If containers share the folder, the first one's secret counts.
        ln "$file.$$" "$file" 2>/dev/null &&
            echo "clients need a user: root was created, its secret is in $file (docker exec CONTAINER cat $file)" >&2
        rm "$file.$$"
        umask 022
    fi
    if [ -z "${AEROBEE_ACLENABLE:-}${AEROBEE_AUTHENTICATIONENABLED:-}${AEROBEE_ALLOWANONYMOUS:-}" ]; then
        export AEROBEE_ACLENABLE=true
        export AEROBEE_INNERCLIENTAUTHENTICATIONCREDENTIALS_FILE="$file"
    fi
    ;;
*)
    [ -e "$file" ] || unset AEROBEE_CREDENTIALS_FILE # a client of a cluster elsewhere
    ;;
esac
exec aerobee "$@"
