# docker build -t aerobee . && docker run -p 10911:10911 -p 9876:9876 -v aerobee:/var/lib/aerobee aerobee
FROM docker.io/library/python:3.12-slim AS build
# For the broker's compiled part.
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev \
 || echo "no C compiler: the broker will run in pure Python"
WORKDIR /src
COPY . .
RUN python3 -m venv /opt/aerobee \
 && /opt/aerobee/bin/pip install --no-cache-dir -c constraints.txt .

FROM docker.io/library/python:3.12-slim
RUN useradd --system --uid 10001 --home-dir /var/lib/aerobee --create-home aerobee \
 && install -d -o 10001 -m 700 /var/lib/aerobee/secret
COPY --from=build /opt/aerobee /opt/aerobee
COPY container/start.sh /usr/local/bin/start-aerobee
# Clients need a user: start.sh makes one. docs/security.md shows how to add others.
ENV PATH=/opt/aerobee/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    AEROBEE_BINDADDRESS=0.0.0.0 \
    AEROBEE_CREDENTIALS_FILE=/var/lib/aerobee/secret/root.json \
    AEROBEE_METRICSPROMEXPORTERHOST=0.0.0.0 \
    AEROBEE_STOREPATHROOTDIR=/var/lib/aerobee/store
USER 10001
WORKDIR /var/lib/aerobee
VOLUME /var/lib/aerobee
EXPOSE 9876 10909 10911 10912 5557
STOPSIGNAL SIGTERM
# A broker answers by HTTP; a name server alone, or a broker without metrics, is pinged, perhaps under TLS.
HEALTHCHECK --interval=10s --timeout=8s CMD \
    python3 -c "import urllib.request as u; u.urlopen('http://127.0.0.1:5557/healthz', timeout=2)" 2>/dev/null && exit 0; \
    for port in 10911 9876; do for url in mq://127.0.0.1:$port "mqs://127.0.0.1:$port?verify=none"; do \
    aerobee ping --direct --count 1 --timeout 1 --url "$url" && exit 0; done; done; exit 1
ENTRYPOINT ["start-aerobee"]
CMD ["broker"]
