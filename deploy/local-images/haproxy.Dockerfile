# haproxy of Debian, used like the public image of the same version.
FROM toolbus-base
RUN apt-get update -qq \
    && apt-get install -y -qq --no-install-recommends haproxy >/dev/null \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --system --uid 99 --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin balancer
USER 99
STOPSIGNAL SIGUSR1
CMD ["haproxy", "-W", "-db", "-f", "/usr/local/etc/haproxy/haproxy.cfg"]
