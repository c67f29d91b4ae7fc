# docker build -t gramloop . && docker run --rm -v "$PWD:/work" -w /work gramloop evaluate --help
FROM python:3.11-slim
COPY . /opt/gramloop
RUN cd /opt/gramloop \
    && pip install --no-cache-dir -c constraints.txt torch==2.13.0 \
    && pip install --no-cache-dir -c constraints.txt '.[all]'
ENTRYPOINT ["gramloop"]
CMD ["--help"]
