mkdir -p three
test -e three/token || (umask 077; openssl rand -hex 32 > three/token)
peers=n1=127.0.0.1:4472,n2=127.0.0.1:4482,n3=127.0.0.1:4492

start() {
  querator serve --name "$1" --listen "$2" --listen-admin "$3" --peers "$peers" \
    --cluster-token-file three/token --data-dir "three/$1" 2> "three/$1.log" &
  echo $! > "three/$1.pid"
}

start n1 127.0.0.1:4470 127.0.0.1:4471
start n2 127.0.0.1:4480 127.0.0.1:4481
start n3 127.0.0.1:4490 127.0.0.1:4491
trap 'kill $(jobs -p)' INT TERM
wait
wait
