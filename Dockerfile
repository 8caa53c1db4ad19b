FROM node:24-bookworm-slim AS package
WORKDIR /app
COPY package.json package-lock.json tsconfig.json README.md LICENSE ./
RUN npm ci --ignore-scripts
COPY bin bin
COPY build build
COPY gen gen
COPY src src
RUN npm pack --pack-destination /tmp && mv /tmp/toolgate-*.tgz /tmp/toolgate.tgz

FROM node:24-bookworm-slim
# What agents' commands need beyond this (compilers, languages) belongs in your own image, built FROM this one.
# tini forwards signals and reaps the processes that commands leave behind. The sandbox mounts its settings over /etc/gitconfig.
RUN apt-get update \
  && apt-get install -y --no-install-recommends bubblewrap ca-certificates git ripgrep tini \
  && rm -rf /var/lib/apt/lists/* \
  && touch /etc/gitconfig \
  && useradd --uid 10001 --user-group --create-home --shell /bin/bash toolgate \
  && install -d -o toolgate -g toolgate -m 0700 /data \
  && install -d -o toolgate -g toolgate /workspace
# The image brings Node. With --global, npm 11 ignores --omit=optional, and installs the package that brings another one.
RUN --mount=type=bind,from=package,source=/tmp/toolgate.tgz,target=/tmp/toolgate.tgz \
  npm install --global --no-audit --no-fund /tmp/toolgate.tgz && npm cache clean --force \
  && cd /usr/local/lib/node_modules/toolgate/node_modules && rm -rf node-linux-* .bin/node /tmp/node-compile-cache

USER 10001:10001
# Beyond loopback it does not start without TLS, unless TOOLGATE_INSECURE_LISTEN=true states that the port is published
# on the machine's own loopback only, or behind a proxy that has TLS.
ENV NODE_ENV=production \
  TOOLGATE_LISTEN=0.0.0.0:7420 \
  TOOLGATE_DATA=/data \
  TOOLGATE_WORKSPACE=/workspace
VOLUME ["/data", "/workspace"]
EXPOSE 7420

# It asks its own loopback address, so it need not verify the certificate. With client certificates, replace this check.
HEALTHCHECK --interval=10s --timeout=5s --start-period=20s --retries=3 CMD ["node", "-e", "\
  require(process.env.TOOLGATE_TLS_CERT ? 'https' : 'http')\
    .get({ host: '127.0.0.1', port: 7420, path: '/readyz', rejectUnauthorized: false }, ({ statusCode }) => process.exit(statusCode === 200 ? 0 : 1))\
    .on('error', () => process.exit(1))"]
# Bounds Node's space for new objects: a busy service takes a quarter less memory and the same CPU, and pauses for less time.
ENTRYPOINT ["tini", "--", "node", "--max-semi-space-size=4", "/usr/local/bin/toolgate"]
CMD ["serve"]
